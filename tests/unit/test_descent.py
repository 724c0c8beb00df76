"""The one training loop, step by step."""

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from bouquet.core.descent import Sgd, descend, slope, slope_in_vmap
from bouquet.core.task import Batch
from bouquet.core.trees import Tree, norm


class Parts(NamedTuple):
    """Two trees and a number that move side by side."""

    w: Tree
    v: Tree
    alpha: Tensor


def tree(*values: float) -> Tree:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def batch(target: float, active: bool = True) -> Batch:
    """One example, whose target is the optimum."""
    one = torch.ones(1, dtype=torch.float64)
    return Batch(one, one * target, one * active, number(float(active)))


def parabola(point: Tree, step: Batch) -> Tensor:
    """½ ‖w − c‖², with slope w − c."""
    return 0.5 * (point["w"] - step.y).square().sum() * step.weight.sum()


def parts_loss(point: Parts, step: Batch) -> Tensor:
    """With slopes w − c, v − c and 3."""
    return parabola(point.w, step) + parabola(point.v, step) + 3 * point.alpha


# Plain steps


def test_a_step_goes_against_the_gradient() -> None:
    """From w = 3 on ½(w − 1)²: slope 2, so 3 − 0.1·2."""
    assert descend(parabola, tree(3.0), [batch(1.0)], Sgd(0.1))["w"].item() == 3.0 - 0.1 * 2.0


def test_every_step_takes_its_own_batch_and_starts_where_the_last_one_ended() -> None:
    """From 4: towards 0 by half is 2, towards 1 by half is 1.5."""
    end = descend(parabola, tree(4.0), [batch(0.0), batch(1.0)], Sgd(0.5))
    assert end["w"].item() == 1.5


def test_without_a_batch_nothing_moves() -> None:
    assert descend(parabola, tree(4.0), [], Sgd(0.5))["w"].item() == 4.0


def test_all_parts_move_from_the_same_point() -> None:
    """On w·v from (2, 3) both slopes are taken before either moves: (2 − 3, 3 − 2)."""

    class Two(NamedTuple):
        w: Tensor
        v: Tensor

    end = descend(
        lambda p, step: p.w * p.v * step.active,
        Two(number(2.0), number(3.0)),
        [batch(0.0)],
        Sgd(1.0),
    )
    assert (end.w.item(), end.v.item()) == (-1.0, 1.0)


def test_parts_go_at_the_common_rate_unless_each_has_its_own() -> None:
    """From 4 with slopes 4, 4 and 3."""
    start = Parts(tree(4.0), tree(4.0), number(4.0))
    common = descend(parts_loss, start, [batch(0.0)], Sgd(0.5))
    assert [common.w["w"].item(), common.v["w"].item(), common.alpha.item()] == [2.0, 2.0, 2.5]
    own = descend(
        parts_loss, start, [batch(0.0)], Sgd(9.0), rates={"w": 0.5, "v": 0.25, "alpha": 1.0}
    )
    assert [own.w["w"].item(), own.v["w"].item(), own.alpha.item()] == [2.0, 3.0, 1.0]


@pytest.mark.parametrize("gradient", [slope, slope_in_vmap])
def test_a_part_the_loss_does_not_depend_on_stays_where_it_is(gradient: Any) -> None:
    start = Parts(tree(4.0), tree(7.0), number(0.3))
    end = descend(
        lambda p, step: parabola(p.w, step), start, [batch(0.0)], Sgd(0.5, gradient=gradient)
    )
    assert [end.w["w"].item(), end.v["w"].item(), end.alpha.item()] == [2.0, 7.0, 0.3]


def test_the_two_ways_to_a_gradient_agree() -> None:
    def loss(point: Parts, step: Batch) -> Tensor:
        mixed = point.alpha * point.v["w"] + (1 - point.alpha) * point.w["w"].detach()
        return parabola(point.w, step) + (mixed - step.y).pow(4).sum()

    start = Parts(tree(0.3, -0.7), tree(1.1, 0.2), number(0.4))
    ends = [
        descend(loss, start, [batch(1.0), batch(-0.5)], Sgd(0.1, gradient=one))
        for one in (slope, slope_in_vmap)
    ]
    for one, other in zip(*map(flat, ends), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("gradient", [slope, slope_in_vmap])
def test_the_end_point_carries_no_graph_along(gradient: Any) -> None:
    """Else memory would grow with every round a state lives through."""
    end = descend(parabola, tree(3.0), [batch(1.0)] * 2, Sgd(0.1, gradient=gradient))
    assert not end["w"].requires_grad


def test_the_result_is_of_the_type_that_went_in() -> None:
    parts = descend(parts_loss, Parts(tree(1.0), tree(1.0), number(1.0)), [batch(0.0)], Sgd(0.1))
    assert type(parts) is Parts


def test_a_projection_is_applied_after_every_step() -> None:
    """From 0 halfway to 10 is 5, which may be 1 at most; from there halfway to 0 is 0.5."""
    end = descend(
        parabola,
        tree(0.0),
        [batch(10.0), batch(0.0)],
        Sgd(0.5),
        project=lambda point: {"w": point["w"].clamp(max=1.0)},
    )
    assert end["w"].item() == 0.5


def test_what_a_projection_returns_is_left_as_it_was_too() -> None:
    """It may be anything, such as where the client started."""
    home = tree(4.0)
    end = descend(parabola, tree(3.0), [batch(0.0)] * 3, Sgd(0.5), project=lambda point: home)
    assert home["w"].item() == 4.0
    assert end["w"].item() == 4.0


def test_a_projection_may_tie_two_parts_together() -> None:
    """Both go from 4 to 2 to 1; if they shared their memory, each would take both steps."""
    start = Parts(tree(4.0), tree(4.0), number(0.0))
    end = descend(
        parts_loss, start, [batch(0.0)] * 2, Sgd(0.5), project=lambda p: p._replace(v=p.w)
    )
    assert [end.w["w"].item(), end.v["w"].item()] == [1.0, 1.0]


def test_what_goes_in_is_left_as_it_was() -> None:
    start = Parts(tree(4.0, 5.0), tree(1.0, 2.0), number(0.5))
    batches = [batch(0.0), batch(1.0)]
    before = copy.deepcopy((start, batches))
    descend(parts_loss, start, batches, Sgd(0.1, clip=0.5, decoupled_decay=0.1))
    for one, other in zip(flat((start, batches)), flat(before), strict=True):
        assert torch.equal(one, other)


def flat(nested: object) -> list[Tensor]:
    if isinstance(nested, Tensor):
        return [nested]
    inner = nested.values() if isinstance(nested, dict) else nested
    return [tensor for part in inner for tensor in flat(part)]  # type: ignore[attr-defined]


# Clipping and decay


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=4), st.floats(0.01, 200))
def test_a_gradient_is_shortened_to_the_bound_and_never_turned(
    start: list[float], bound: float
) -> None:
    """From w towards 0 the slope is w itself, so a step of rate 1 covers min(‖w‖, bound)."""
    point = tree(*start)
    end = descend(parabola, point, [batch(0.0)], Sgd(1.0, clip=bound))
    share = min(1.0, bound / max(float(norm(point)), 1e-15))
    torch.testing.assert_close(end["w"], point["w"] * (1 - share), rtol=0, atol=1e-12)


def test_a_gradient_below_the_bound_is_not_touched_at_all() -> None:
    steps = [batch(0.3), batch(-0.1)]
    free = descend(parabola, tree(1.7, -2.9), steps, Sgd(0.1))
    clipped = descend(parabola, tree(1.7, -2.9), steps, Sgd(0.1, clip=10.0))
    assert torch.equal(free["w"], clipped["w"])


def test_the_bound_is_on_all_parameters_of_a_part_together() -> None:
    """A slope of (3, 4) in two parameters has norm 5: bound 1 leaves a fifth of it."""

    def loss(point: Tree, step: Batch) -> Tensor:
        return 3 * point["a"] + 4 * point["b"]

    start = {"a": number(0.0), "b": number(0.0)}
    end = descend(loss, start, [batch(0.0)], Sgd(1.0, clip=1.0))
    assert [end["a"].item(), end["b"].item()] == pytest.approx([-0.6, -0.8], abs=1e-15)


def test_each_part_is_clipped_on_its_own() -> None:
    """Of the slopes 100 and 0.5 only the first is above the bound of 1."""
    start = Parts(tree(100.0), tree(0.5), number(0.0))
    end = descend(parts_loss, start, [batch(0.0)], Sgd(1.0, clip=1.0))
    assert [end.w["w"].item(), end.v["w"].item()] == pytest.approx([99.0, 0.0], abs=1e-13)


def test_a_part_that_is_a_single_tensor_is_not_clipped() -> None:
    """Its slope is 3, the bound 1; a mixing weight has a projection instead."""
    start = Parts(tree(0.0), tree(0.0), number(5.0))
    end = descend(parts_loss, start, [batch(0.0)], Sgd(1.0, clip=1.0))
    assert end.alpha.item() == pytest.approx(2.0, abs=1e-15)


def test_a_gradient_whose_square_overflows_is_still_followed() -> None:
    """3·10³⁰ and 4·10³⁰ are 5·10³⁰ long, though their squares are too much for a float32."""
    steep = torch.tensor([3e30, 4e30])
    start = {"w": torch.zeros(2)}
    end = descend(lambda p, step: steep @ p["w"], start, [batch(0.0)], Sgd(1.0, clip=1.0))
    assert end["w"].tolist() == pytest.approx([-0.6, -0.8])


def test_at_a_flat_point_clipping_divides_by_nothing() -> None:
    end = descend(parabola, tree(2.0), [batch(2.0)], Sgd(1.0, clip=1.0))
    assert end["w"].item() == 2.0


def test_one_bound_may_be_on_all_parts_together() -> None:
    """Slopes of 3 and 4 are 5 long: bound 1 leaves a fifth of both, and alpha's 3 is not one."""
    start = Parts(tree(3.0), tree(4.0), number(0.0))
    end = descend(parts_loss, start, [batch(0.0)], Sgd(1.0, clip=1.0, clip_all=True))
    assert [end.w["w"].item(), end.v["w"].item()] == pytest.approx([2.4, 3.2], abs=1e-15)
    assert end.alpha.item() == -3.0


@pytest.mark.parametrize("together", [True, False])
def test_a_part_may_be_empty(together: bool) -> None:
    """Of a split model, for example, all of whose parameters are shared."""
    start = Parts(tree(3.0), {}, number(0.0))
    end = descend(lambda p, step: parabola(p.w, step), start, [batch(0.0)], Sgd(1.0, 1.0, together))
    assert end.w["w"].item() == 2.0


def test_decoupled_decay_pulls_towards_zero() -> None:
    """From 3 on ½(w − 1)²: slope 2, pull 0.5·3, so 3 − 0.1·3.5."""
    end = descend(parabola, tree(3.0), [batch(1.0)], Sgd(0.1, decoupled_decay=0.5))
    assert end["w"].item() == pytest.approx(3.0 - 0.1 * 3.5, abs=1e-15)


def test_decoupled_decay_is_beyond_the_bound() -> None:
    """The bound leaves 1 of the slope 2; the pull 1.5 comes on top, so 3 − 0.1·2.5."""
    end = descend(parabola, tree(3.0), [batch(1.0)], Sgd(0.1, clip=1.0, decoupled_decay=0.5))
    assert end["w"].item() == pytest.approx(3.0 - 0.1 * 2.5, abs=1e-15)


def test_every_part_decays_at_its_own_rate_and_single_tensors_never() -> None:
    """At the optimum 2 only the pull 0.5·2 = 1 moves; alpha's slope is 3 and no more."""
    start = Parts(tree(2.0), tree(2.0), number(2.0))
    sgd = Sgd(1.0, decoupled_decay=0.5)
    end = descend(parts_loss, start, [batch(2.0)], sgd, rates={"w": 1.0, "v": 0.25, "alpha": 1.0})
    assert [end.w["w"].item(), end.v["w"].item(), end.alpha.item()] == [1.0, 1.75, -1.0]


# Steps only others take


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_a_step_the_client_does_not_take_leaves_every_bit(clip: float) -> None:
    """Whatever the objective adds to the loss of the examples, and whatever decay would do."""

    def penalized(point: Parts, step: Batch) -> Tensor:
        return parts_loss(point, step) + 5 * point.w["w"].square().sum()

    start = Parts(tree(0.1, 0.7), tree(1 / 3, -2.0), number(0.3))
    end = descend(
        penalized, start, [batch(9.0, active=False)] * 3, Sgd(0.1, clip, decoupled_decay=0.2)
    )
    for one, other in zip(flat(end), flat(start), strict=True):
        assert torch.equal(one, other)


def test_clients_side_by_side_take_the_steps_they_would_take_alone() -> None:
    """One client takes both steps, the other only the first."""
    sgd = Sgd(0.1, clip=1.0, decoupled_decay=0.1)
    pattern = [[True, True], [True, False]]
    starts = torch.tensor([[1.0, 2.0], [3.0, -4.0]], dtype=torch.float64)

    def learn(start: Tensor, active: Tensor) -> Tensor:
        given = [batch(float(n))._replace(active=one) for n, one in enumerate(active.unbind())]
        together = replace(sgd, gradient=slope_in_vmap)
        return descend(parabola, {"w": start}, given, together)["w"]

    together = vmap(learn)(starts, torch.tensor(pattern, dtype=torch.float64))
    for place, active in enumerate(pattern):
        taken = [batch(float(n)) for n, one in enumerate(active) if one]
        alone = descend(parabola, {"w": starts[place]}, taken, sgd)["w"]
        torch.testing.assert_close(together[place], alone, rtol=0, atol=1e-15)
