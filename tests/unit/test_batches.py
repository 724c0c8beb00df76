"""Which examples a client sees, alone or beside others."""

import itertools
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from bouquet.core.batches import Draw, Plan, draw, gather, in_one, side_by_side, steps
from bouquet.core.descent import Sgd, descend, slope, slope_in_vmap
from bouquet.core.task import Batch
from bouquet.core.trees import Tree, pick

plans = st.builds(
    lambda amount, epochs, size: Plan(0 if epochs else amount, amount if epochs else 0, size),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 6),
)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def shares(sizes: list[int]) -> dict[str, Tensor]:
    """Clients ``a``, ``b``, … with so many examples each, at positions nobody else has."""
    ends = list(itertools.accumulate(sizes, initial=0))
    pairs = zip("abcdefgh", itertools.pairwise(ends), strict=False)
    return {client: torch.arange(start, end) for client, (start, end) in pairs}


def draw_for(own: dict[str, Tensor], plan: Plan, seed: int = 0, round_: int = 1) -> Draw:
    return draw(list(own), list(own.values()), plan, (seed, "train", round_), torch.float64)


def seen(drawn: Draw, client: int = 0) -> list[list[int]]:
    """The real examples of each step a client takes."""
    rows = zip(drawn.examples[client], drawn.weight[client], drawn.active[client], strict=True)
    return [row[weight > 0].tolist() for row, weight, active in rows if active]


# What the choice depends on


@settings(deadline=None)
@given(sizes, plans, st.integers(0, 9), st.integers(1, 9))
def test_what_a_client_sees_does_not_depend_on_its_neighbours(
    sizes: list[int], plan: Plan, seed: int, round_: int
) -> None:
    own = shares(sizes)
    together = draw_for(own, plan, seed, round_)
    for place, (client, examples) in enumerate(own.items()):
        alone = draw_for({client: examples}, plan, seed, round_)
        assert seen(together, place) == seen(alone)


def test_what_a_client_sees_depends_on_the_seed_the_round_and_its_id() -> None:
    examples, plan = torch.arange(50), Plan(steps=0, epochs=1, batch_size=5)
    draws = [
        draw_for({"a": examples}, plan, seed=0, round_=1),
        draw_for({"a": examples}, plan, seed=1, round_=1),
        draw_for({"a": examples}, plan, seed=0, round_=2),
        draw_for({"b": examples}, plan, seed=0, round_=1),
    ]
    assert len({str(seen(one)) for one in draws}) == 4
    assert seen(draws[0]) == seen(draw_for({"a": examples}, plan, seed=0, round_=1))


# What a client sees


@settings(deadline=None)
@given(sizes, st.integers(1, 3), st.integers(0, 6))
def test_every_pass_visits_every_example_of_the_client_once(
    sizes: list[int], epochs: int, batch_size: int
) -> None:
    own = shares(sizes)
    drawn = draw_for(own, Plan(steps=0, epochs=epochs, batch_size=batch_size))
    for place, examples in enumerate(own.values()):
        visited = list(itertools.chain.from_iterable(seen(drawn, place)))
        assert len(visited) == epochs * len(examples)
        for one_pass in range(0, len(visited), len(examples)):
            assert sorted(visited[one_pass : one_pass + len(examples)]) == examples.tolist()


def test_local_steps_stop_within_a_pass() -> None:
    """Five examples in batches of two are three steps a pass; seven steps are 2⅓ passes."""
    own = shares([5])
    batches = seen(draw_for(own, Plan(steps=7, epochs=0, batch_size=2)))
    assert [len(batch) for batch in batches] == [2, 2, 1, 2, 2, 1, 2]
    for one_pass in (batches[:3], batches[3:6]):
        assert sorted(itertools.chain(*one_pass)) == own["a"].tolist()
    assert len(set(batches[6])) == 2


def test_each_pass_has_an_order_of_its_own() -> None:
    batches = seen(draw_for(shares([20]), Plan(steps=0, epochs=3, batch_size=4)))
    orders = {str(batches[start : start + 5]) for start in (0, 5, 10)}
    assert len(orders) == 3


@pytest.mark.parametrize("batch_size", [0, 4, 100])
def test_a_full_batch_is_all_a_client_has(batch_size: int) -> None:
    own = shares([4])
    drawn = draw_for(own, Plan(steps=3, epochs=0, batch_size=batch_size))
    assert seen(drawn) == [own["a"].tolist()] * 3
    assert drawn.examples.shape == (1, 3, 4)  # nothing is padded


# Padding


@settings(deadline=None)
@given(sizes, plans)
def test_the_real_examples_of_a_step_share_its_weight_equally(sizes: list[int], plan: Plan) -> None:
    drawn = draw_for(shares(sizes), plan)
    totals = drawn.weight.sum(dim=2)
    torch.testing.assert_close(totals, drawn.active, rtol=1e-12, atol=0)
    for weights in drawn.weight.flatten(0, 1):
        assert len(set(weights[weights > 0].tolist())) <= 1


def test_a_client_that_is_through_early_waits_for_the_others() -> None:
    """One pass in batches of two: one step for two examples, three for five."""
    drawn = draw_for(shares([2, 5]), Plan(steps=0, epochs=1, batch_size=2))
    assert drawn.active.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert drawn.weight[1].tolist() == [[0.5, 0.5], [0.5, 0.5], [1, 0]]


def test_batches_hold_the_examples_that_were_drawn() -> None:
    x, y = torch.rand(7, 3), torch.arange(7)
    drawn = draw_for(shares([2, 5]), Plan(steps=4, epochs=0, batch_size=2))
    batches = gather(x, y, drawn)
    assert torch.equal(batches.y, drawn.examples)
    assert torch.equal(batches.x, x[drawn.examples])
    of_second = steps(pick(batches, 1))
    assert len(of_second) == 4
    assert torch.equal(of_second[2].x, x[drawn.examples[1, 2]])
    assert torch.equal(of_second[2].weight, drawn.weight[1, 2])


def test_steps_are_a_sequence_of_batches() -> None:
    x, y = torch.rand(9, 3), torch.arange(9)
    drawn = draw_for(shares([9]), Plan(steps=6, epochs=0, batch_size=2))
    whole = steps(pick(gather(x, y, drawn), 0))
    one_by_one = list(whole)
    assert len(one_by_one) == len(whole) == 6
    assert torch.equal(whole[-1].x, one_by_one[5].x)
    for part in (slice(2, 4), slice(1, None, 3), slice(0, 0)):
        assert [one.y.tolist() for one in whole[part]] == [
            one.y.tolist() for one in one_by_one[part]
        ]
    with pytest.raises(IndexError):
        _ = whole[6]


def test_batches_are_put_into_one_whatever_they_are_kept_in() -> None:
    x, y = torch.rand(9, 3), torch.arange(9)
    whole = steps(pick(gather(x, y, draw_for(shares([9]), Plan(4, 0, 2))), 0))
    assert torch.equal(in_one(whole).x, in_one(list(whole)).x)
    again = in_one([whole[1]] * 3)
    assert torch.equal(again.x, torch.stack([whole[1].x] * 3))
    assert again.x.stride(0) == 0  # no copies of the same
    pairs = side_by_side(Pair, whole[::2], whole[1::2])
    listed = side_by_side(Pair, list(whole[::2]), list(whole[1::2]))
    for one, other in zip(pairs, listed, strict=True):
        assert torch.equal(one.first.x, other.first.x)
        assert torch.equal(one.second.y, other.second.y)


class Pair(NamedTuple):
    """Two batches of a step."""

    first: Batch
    second: Batch


@settings(deadline=None, max_examples=40)
@given(sizes, plans)
def test_padding_never_changes_what_a_client_learns(sizes: list[int], plan: Plan) -> None:
    """Least squares with a penalty, which would pull even in a step nobody takes."""
    own = shares(sizes)
    total = sum(sizes)
    x = torch.linspace(-1, 1, 2 * total, dtype=torch.float64).reshape(total, 2)
    y = torch.linspace(2, 3, total, dtype=torch.float64)

    def loss(w: Tree, batch: Batch) -> Tensor:
        return (batch.x @ w["w"] - batch.y).square() @ batch.weight + w["w"].square().sum()

    def learn(batches: Batch, gradient: Any = slope) -> Tensor:
        start = {"w": torch.ones(2, dtype=torch.float64)}
        sgd = Sgd(0.1, clip=1.0, decoupled_decay=0.1, gradient=gradient)
        return descend(loss, start, steps(batches), sgd)["w"]

    together = vmap(partial(learn, gradient=slope_in_vmap))(gather(x, y, draw_for(own, plan)))
    for learned, client in zip(together, own, strict=True):
        alone = learn(pick(gather(x, y, draw_for({client: own[client]}, plan)), 0))
        torch.testing.assert_close(learned, alone, rtol=0, atol=1e-13)
