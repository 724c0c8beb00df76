"""A step size that falls from step to step: what each scheme makes of it, by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from bouquet.core.batches import paces
from bouquet.core.descent import Sgd, descend
from bouquet.core.scheme import Model, Work
from bouquet.core.task import Batch
from bouquet.core.trees import Nothing, Tree
from bouquet.strategies import fedu, pfedme, scaffold
from tests.conftest import Array, Quadratics, Run
from tests.unit.algebra import EXACT, clients, number, scalar_work

Start = Callable[..., Run]


def slowing() -> Work:
    """Two steps on f(w) = ½·2·(w − 1)²: one of 0.1, one of half that."""
    work = scalar_work(steps=2, lr=0.1, curvature=2.0, optimum=1.0)
    half = torch.tensor(0.5, dtype=torch.float64)
    first, second = work.batches[0], work.batches[1]._replace(pace=half)
    return replace(work, sgd=replace(work.sgd, paced=True), batches=[first, second])


def test_scaffolds_control_variate_is_the_mean_gradient_by_step_size() -> None:
    """From 3: slopes 4 and 3.2, so y = 3 − 0.4 − 0.16 and c_i = 0.56 / (0.1 + 0.05)."""
    zero = scaffold.Personal(number(0.0))
    change, kept = scaffold.Scaffold().local_update(
        slowing(), scaffold.Pair(number(3.0), number(0.0)), zero
    )
    assert change.w["w"].item() == pytest.approx(-0.56, abs=1e-15)
    assert kept.c["w"].item() == pytest.approx(0.56 / 0.15, abs=1e-14)


def test_fedu_reaches_as_far_as_the_sum_of_its_step_sizes() -> None:
    payload = fedu.Payload(number(3.0), number(3.0))
    upload, _ = fedu.FedU().local_update(slowing(), payload, Nothing())
    assert upload.reach.item() == pytest.approx(0.15, abs=1e-15)


def test_pfedme_slows_both_its_steps_down() -> None:
    """λ = 2, one inner step of 0.1, from θ = w = 3.

    - θ = 3 − 0.1·4 = 2.6, w = 3 − 0.1·2·0.4 = 2.92
    - θ = 2.6 − 0.05·(3.2 + 2·(2.6 − 2.92)) = 2.472, w = 2.92 − 0.05·2·(2.92 − 2.472)
    """
    scheme = pfedme.PFedMe(strength=2.0, inner_steps=1, inner_lr=0.1)
    begun = scheme.init_personal(slowing().task, 1)
    upload, kept = scheme.local_update(slowing(), Model(number(3.0)), begun)
    assert kept.theta["w"].item() == pytest.approx(2.472, abs=1e-14)
    assert upload.w["w"].item() == pytest.approx(2.8752, abs=1e-14)


class Pair(NamedTuple):
    """A tree and a number that move side by side."""

    w: Tree
    alpha: Tensor


@pytest.mark.parametrize("recorded", ["", "replayed"])
def test_the_pace_is_that_of_all_that_moves_and_of_decay_and_comes_after_the_bound(
    recorded: str,
) -> None:
    """w at 3: the bound leaves 1 of the slope 4, decay adds 0.5·3; alpha's slope is 3."""

    def objective(point: Pair, step: Batch) -> Tensor:
        return slowing().task.loss(point.w, step) + 3 * point.alpha

    rule = Sgd(0.1, clip=1.0, decoupled_decay=0.5, paced=True, recorded=recorded)
    start = Pair(number(3.0), torch.tensor(1.0, dtype=torch.float64))
    end = descend(objective, start, [slowing().batches[1]], rule, rates={"alpha": 0.2})
    assert end.w["w"].item() == pytest.approx(3 - 0.05 * 2.5, abs=1e-14)
    assert end.alpha.item() == pytest.approx(1 - 0.1 * 3, abs=1e-15)


def test_batches_of_one_step_have_one_pace() -> None:
    """A client that took 4 steps before, and one that took none; d = 1, three batches a step."""
    found = paces([4, 0], 6, 3, 1.0)
    assert found.tolist() == [[1 / 5] * 3 + [1 / 6] * 3, [1.0] * 3 + [0.5] * 3]


KEYS: dict[str, Any] = {"local_steps": 2, "lr": 0.4, "lr_decay_per_step": 0.5}


def stepped(w: Array, a: Array, c: Array, times: range) -> Array:
    """Gradient steps of 0.4 / (1 + 0.5 t)."""
    for t in times:
        w = w - 0.4 / (1 + 0.5 * t) * (a @ (w - c))
    return w


def averaged(w: Array, problem: Quadratics, rounds: int) -> Array:
    for done in range(rounds):
        times = range(2 * done, 2 * done + 2)
        w = np.mean([stepped(w, a, c, times) for a, c in clients(problem)], axis=0)
    return w


def test_time_starts_over_in_every_stage(start: Start, quadratics: Quadratics) -> None:
    run = start(pipeline="fedavg:3 fedavg:2", **KEYS, **quadratics.keys)
    expected = averaged(averaged(quadratics.init, quadratics, 3), quadratics, 2)
    np.testing.assert_allclose(run.shared(), expected, atol=EXACT, rtol=0)


def test_time_goes_on_when_a_client_adapts(start: Start, quadratics: Quadratics) -> None:
    """Two rounds of two steps, and then t = 4, 5 and 6."""
    run = start(scheme="finetune", rounds=2, finetune={"steps": 3}, **KEYS, **quadratics.keys)
    shared = averaged(quadratics.init, quadratics, 2)
    for place, (a, c) in enumerate(clients(quadratics)):
        tuned = stepped(shared, a, c, range(4, 7))
        np.testing.assert_allclose(run.predictor(f"{place:03}"), tuned, atol=EXACT, rtol=0)


def test_perfedavg_without_adaptation_is_fedavg_at_every_step_size(
    start: Start, quadratics: Quadratics
) -> None:
    run = start(
        scheme="perfedavg", perfedavg={"inner_lr": 0.0}, rounds=2, **KEYS, **quadratics.keys
    )
    expected = averaged(quadratics.init, quadratics, 2)
    np.testing.assert_allclose(run.shared(), expected, atol=EXACT, rtol=0)


def test_minibatch_sgd_takes_one_step_a_round_at_the_pace_of_its_first_batch(
    start: Start, quadratics: Quadratics
) -> None:
    run = start(scheme="minibatch", rounds=2, **KEYS, **quadratics.keys)
    w = quadratics.init
    for time in (0, 2):
        ends = [stepped(w, a, c, range(time, time + 1)) for a, c in clients(quadratics)]
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)
