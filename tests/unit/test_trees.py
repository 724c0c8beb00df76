"""Trees of tensors and their arithmetic."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from bouquet.core.trees import (
    Nothing,
    Tree,
    digest,
    distance,
    fingerprint,
    finite,
    flatten,
    mix,
    norm,
    pick,
    raw_bytes,
    sha256,
    size_in_bytes,
    stack,
    unflatten,
)


class Pair(NamedTuple):
    """A record with two trees and a tensor, as APFL's is."""

    v: Tree
    w: Tree
    alpha: Tensor


def pair(start: float = 0.0) -> Pair:
    """A record in which no two numbers are equal."""
    numbers = torch.arange(13, dtype=torch.float64) + start
    return Pair(
        {"bias": numbers[:2], "weight": numbers[2:6].reshape(2, 2)},
        {"bias": numbers[6:8], "weight": numbers[8:12].reshape(2, 2)},
        numbers[12],
    )


def same(one: Any, other: Any) -> bool:
    """Whether two records have the same fields, names and bits."""
    flat, twin = flatten(one), flatten(other)
    return (
        type(one) is type(other)
        and flat.keys() == twin.keys()
        and all(flat[name].shape == twin[name].shape for name in flat)
        and all(raw_bytes(flat[name]) == raw_bytes(twin[name]) for name in flat)
    )


# Records


def test_a_flat_record_names_the_field_and_the_parameter() -> None:
    assert list(flatten(pair())) == ["v/bias", "v/weight", "w/bias", "w/weight", "alpha"]


names = st.text(st.characters(codec="utf-8"), min_size=1)
values = npst.arrays(
    st.sampled_from([np.float32, np.float64, np.int64]),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
trees = st.dictionaries(names, values.map(lambda array: torch.from_numpy(np.asarray(array))))


@settings(deadline=None)
@given(trees, trees, st.floats(width=32))
def test_a_record_survives_being_flattened(v: Tree, w: Tree, alpha: float) -> None:
    record = Pair(v, w, torch.tensor(alpha))
    assert same(unflatten(Pair, flatten(record)), record)


@settings(deadline=None)
@given(st.permutations(list(flatten(pair()))))
def test_a_record_does_not_depend_on_the_order_a_file_has(order: list[str]) -> None:
    """Sums over a tree are taken in its order, and floats do not forgive another one."""
    flat = flatten(pair())
    again = unflatten(Pair, {name: flat[name] for name in order})
    assert [list(again.v), list(again.w)] == [["bias", "weight"]] * 2


def test_nothing_is_a_record_too() -> None:
    assert flatten(Nothing()) == {}
    assert unflatten(Nothing, {}) == Nothing()
    assert stack([Nothing(), Nothing()]) == Nothing()
    assert pick(Nothing(), 1) == Nothing()


@settings(deadline=None)
@given(st.integers(1, 4), st.data())
def test_a_record_picked_from_a_stack_is_the_one_that_went_in(count: int, data: Any) -> None:
    records = [pair(start) for start in range(count)]
    place = data.draw(st.integers(0, count - 1))
    assert same(pick(stack(records), place), records[place])


def test_a_picked_record_has_memory_of_its_own() -> None:
    stacked = stack([pair(0), pair(100)])
    one = pick(stacked, 1)
    for value in flatten(stacked).values():
        value.zero_()
    assert same(one, pair(100))


def test_a_picked_record_is_laid_out_row_by_row_whatever_the_stack_is() -> None:
    columns = Pair({"weight": torch.arange(12.0).reshape(2, 2, 3).mT}, {}, torch.zeros(2))
    assert not columns.v["weight"][1].is_contiguous()
    assert pick(columns, 1).v["weight"].is_contiguous()


# Arithmetic

tensors = npst.arrays(np.float64, 4, elements=st.floats(-1e9, 1e9)).map(torch.from_numpy)


@settings(deadline=None)
@given(tensors, tensors)
def test_a_mixture_is_exactly_one_of_its_parts_at_each_end(one: Tensor, other: Tensor) -> None:
    for as_share in (float, lambda share: torch.tensor(share, dtype=torch.float64)):
        assert torch.equal(mix({"w": one}, {"w": other}, as_share(1.0))["w"], one)
        assert torch.equal(mix({"w": one}, {"w": other}, as_share(0.0))["w"], other)


@settings(deadline=None)
@given(tensors, tensors, st.floats(0, 1))
def test_a_mixture_takes_its_share_of_each_part(one: Tensor, other: Tensor, share: float) -> None:
    mixed = mix({"w": one}, {"w": other}, torch.tensor(share, dtype=torch.float64))["w"]
    scale = torch.maximum(one.abs(), other.abs()).max().item()
    torch.testing.assert_close(mixed, share * one + (1 - share) * other, rtol=0, atol=1e-15 * scale)


def test_norm_and_distance_are_over_all_values_together() -> None:
    """3, 4 and 12 make √(9 + 16 + 144) = 13."""
    tree = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([[12.0]])}
    assert float(norm(tree)) == 13.0
    assert float(norm({})) == 0.0
    other = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[9.0]])}
    assert float(distance(tree, other)) == 5.0


def test_the_norm_of_float32_values_does_not_overflow() -> None:
    size = norm({"w": torch.tensor([3e30, 4e30])})
    assert float(size) == pytest.approx(5e30, rel=1e-6)


def test_size_in_bytes_counts_what_each_type_takes() -> None:
    tree = {"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.float64)}
    assert size_in_bytes(tree) == 2 * 3 * 4 + 5 * 8


# Finiteness


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("field", ["v", "alpha"])
def test_only_the_client_with_a_value_that_is_not_finite_is_found(bad: float, field: str) -> None:
    stacked = Pair({"w": torch.ones(3, 2, 2)}, {}, torch.ones(3))
    (stacked.v["w"][1, 0] if field == "v" else stacked.alpha[1:2])[0] = bad
    assert finite(stacked, 3).tolist() == [True, False, True]


def test_infinities_that_cancel_are_still_found() -> None:
    stacked = Pair({"w": torch.tensor([[torch.inf, -torch.inf], [1.0, 2.0]])}, {}, torch.ones(2))
    assert finite(stacked, 2).tolist() == [False, True]


def test_finite_values_whose_sum_overflows_are_finite() -> None:
    most = torch.finfo(torch.float32).max
    stacked = Pair({"w": torch.tensor([[most, most], [most, torch.nan]])}, {}, torch.ones(2))
    assert finite(stacked, 2).tolist() == [True, False]


def test_a_value_that_is_not_finite_is_not_forgotten_over_a_sum_that_overflows() -> None:
    most = torch.finfo(torch.float32).max
    stacked = Pair(
        {"w": torch.tensor([[torch.nan]])}, {"w": torch.tensor([[most, most]])}, torch.ones(1)
    )
    assert finite(stacked, 1).tolist() == [False]


# Hashes


def test_a_hash_changes_with_any_name_type_shape_or_bit() -> None:
    tree = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0])}
    other_trees = [
        {"a": tree["a"], "c": tree["b"]},
        {"b": tree["a"], "a": tree["b"]},
        {"a": tree["a"]},
        {"a": tree["a"].double(), "b": tree["b"]},
        {"a": tree["a"].view(torch.int32), "b": tree["b"]},
        {"a": tree["a"].reshape(2, 1), "b": tree["b"]},
        {"a": tree["a"].nextafter(torch.tensor(3.0)), "b": tree["b"]},
        {"a": tree["a"], "b": -tree["b"]},
        {"a": torch.tensor([1.0]), "b": torch.tensor([2.0, 0.0])},
    ]
    hashes = {sha256(one) for one in [tree, *other_trees]}
    assert len(hashes) == 1 + len(other_trees)


def test_a_hash_does_not_depend_on_the_order_or_the_layout() -> None:
    square = torch.arange(4.0).reshape(2, 2)
    assert sha256({"a": square, "b": square.mT}) == sha256({"b": square.mT.clone(), "a": square})
    assert sha256({"a": square.mT}) == sha256({"a": square.mT.contiguous()})
    assert sha256({"a": square}) != sha256({"a": square.mT})


def test_a_fingerprint_tells_names_shapes_and_types_apart_but_not_values() -> None:
    tree = {"a": torch.zeros(2, 3)}
    assert fingerprint(tree) == fingerprint({"a": torch.ones(2, 3)})
    others = [{"b": torch.zeros(2, 3)}, {"a": torch.zeros(3, 2)}, {"a": torch.zeros(2, 3).double()}]
    assert len({fingerprint(one) for one in [tree, *others]}) == 4


def test_a_digest_tells_the_end_of_one_part_from_the_start_of_the_next() -> None:
    parts = [[b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"", b"abc"]]
    assert len({digest(one) for one in parts}) == 4
