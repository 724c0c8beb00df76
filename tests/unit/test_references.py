"""Minibatch SGD, centralized training and partial fine-tuning."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Model, Work
from bouquet.core.trees import Nothing
from bouquet.problem import problem
from bouquet.settings import parse
from bouquet.strategies import ditto, pfedme, scaffold
from bouquet.strategies.fedprox import FedProx
from tests.conftest import Quadratics, Run
from tests.unit.algebra import EXACT, clients, descended, number, scalar_work

Start = Callable[..., Run]


def test_minibatch_sgd_takes_one_step_a_round(start: Start, quadratics: Quadratics) -> None:
    """Gradient descent on the mean of the losses, however many local steps there are."""
    run = start(scheme="minibatch", rounds=4, local_steps=7, lr=0.3, **quadratics.keys)
    w = quadratics.init
    for _ in range(4):
        w = w - 0.3 * np.mean([a @ (w - c) for a, c in clients(quadratics)], axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)


def test_a_large_batch_is_the_union_of_the_rounds_batches(start: Start) -> None:
    """Passes over all data make the step that full batches make, the last batch a full one too."""
    keys: dict[str, Any] = {
        "rounds": 1,
        "dtype": "float64",
        "data": {"clients": 1, "partition": "iid"},
    }
    sizes = len(
        problem(parse({"data.clients": 1, "data.partition": "iid"})).data.clients["000"].train
    )
    whole = start(scheme="minibatch", batch_size=0, local_steps=1, **keys)
    parts = start(scheme="minibatch", batch_size=sizes // 4, local_steps=4, **keys)
    assert sizes % 4 == 0
    assert parts.summary["shared"]["loss"]["mean"] == pytest.approx(
        whole.summary["shared"]["loss"]["mean"], abs=1e-12
    )


def test_minibatch_sgd_with_one_step_is_fedavg(start: Start) -> None:
    keys: dict[str, Any] = {
        "rounds": 3,
        "local_steps": 1,
        "weights": "uniform",
        "data": {"clients": 4},
    }
    assert start(scheme="minibatch", **keys).sha == start(scheme="fedavg", **keys).sha


def test_centralized_training_descends_the_mean_of_all_losses(
    start: Start, quadratics: Quadratics
) -> None:
    run = start(scheme="centralized", rounds=3, local_steps=4, lr=0.3, **quadratics.keys)
    a = np.mean(quadratics.a, axis=0)
    c = np.linalg.solve(a, np.mean([a @ c for a, c in clients(quadratics)], axis=0))
    expected = descended(quadratics.init, a, c, 0.3, 12)
    np.testing.assert_allclose(run.shared(), expected, atol=EXACT, rtol=0)
    assert run.events[0]["clients"] == ["pool"]
    assert [row["client"] for row in run.clients] == ["000", "001", "002"]


def test_centralized_training_has_no_clients_to_sample(start: Start) -> None:
    with pytest.raises(BadInput, match="clients-per-round must be 0 for centralized"):
        start(scheme="centralized", clients_per_round=2, data={"clients": 4})


def test_partial_fine_tuning_changes_only_its_part(start: Start) -> None:
    run = start(
        scheme="finetune", rounds=2, finetune={"split": "output"}, save_predictors=True,
        data={"clients": 4}, model={"hidden": 8},
    )  # fmt: skip
    for name in ("hidden1.weight", "hidden2.bias"):
        np.testing.assert_array_equal(run.predictor("000", name), run.shared(name))
    assert (run.predictor("000", "output.weight") != run.shared("output.weight")).any()
    whole = start(scheme="finetune", rounds=2, save_predictors=True, data={"clients": 4},
                  model={"hidden": 8})  # fmt: skip
    assert (whole.predictor("000", "hidden1.weight") != whole.shared("hidden1.weight")).any()


def test_every_penalty_has_the_slope_that_differences_find() -> None:
    """One step's direction is the slope of the objective, penalty and all, off its centre.

    f(w) = ½·2·(w − 1)². FedProx: + (μ/2)(w − 3)² at 2 after steps away from 3. Ditto and pFedMe
    the same in v and θ. SCAFFOLD: + w (c − c_i).
    """
    h, lr = 1e-6, 1e-3

    def slope(objective: Callable[[float], float], at: float) -> float:
        return (objective(at + h) - objective(at - h)) / (2 * h)

    def f(w: float) -> float:
        return (w - 1.0) ** 2

    def work(steps: int = 1) -> Work:
        return scalar_work(steps=steps, lr=lr, curvature=2.0, optimum=1.0)

    two, _ = FedProx(mu=5.0).local_update(work(2), Model(number(3.0)), Nothing())
    one, _ = FedProx(mu=5.0).local_update(work(), Model(number(3.0)), Nothing())
    here = one.w["w"].item()
    moved = (here - two.w["w"].item()) / lr
    assert moved == pytest.approx(slope(lambda w: f(w) + 2.5 * (w - 3.0) ** 2, here), abs=1e-6)

    _, own = ditto.Ditto(strength=5.0).local_update(
        work(), Model(number(3.0)), ditto.Personal(number(2.0))
    )
    moved = (2.0 - own.v["w"].item()) / lr
    assert moved == pytest.approx(slope(lambda v: f(v) + 2.5 * (v - 3.0) ** 2, 2.0), abs=1e-6)

    scheme = pfedme.PFedMe(strength=5.0, inner_steps=1, inner_lr=lr)
    begun = pfedme.Personal(number(2.0), torch.ones(()))
    _, kept = scheme.local_update(work(), Model(number(3.0)), begun)
    moved = (2.0 - kept.theta["w"].item()) / lr
    assert moved == pytest.approx(slope(lambda v: f(v) + 2.5 * (v - 3.0) ** 2, 2.0), abs=1e-6)

    payload, variate = scaffold.Pair(number(3.0), number(0.7)), scaffold.Personal(number(0.2))
    change, _ = scaffold.Scaffold().local_update(work(), payload, variate)
    moved = -change.w["w"].item() / lr
    assert moved == pytest.approx(slope(lambda w: f(w) + 0.5 * w, 3.0), abs=1e-6)
