"""Each scheme against algebra: pinned steps, closed forms, degenerate values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Model
from bouquet.core.trees import Nothing
from bouquet.strategies import apfl
from bouquet.strategies.fedavg import FedAvg
from tests.conftest import Quadratics, Run, make_quadratics
from tests.unit.algebra import EXACT, clients, descended, number, scalar_work

Start = Callable[..., Run]


def apfl_state(v: float, alpha: float) -> apfl.Personal:
    return apfl.Personal(number(v), torch.tensor(alpha, dtype=torch.float64))


def test_fedavg_takes_the_step_derived_by_hand() -> None:
    """One step from w = 3 on ½·2·(w − 1)², η = 0.1: ∇f = 2·(3 − 1) = 4, so w = 3 − 0.4."""
    work = scalar_work(steps=1, lr=0.1, curvature=2.0, optimum=1.0)
    upload, _ = FedAvg().local_update(work, Model(number(3.0)), Nothing())
    assert upload.w["w"].item() == pytest.approx(2.6, abs=1e-15)


def test_fedavg_follows_its_closed_form(start: Start, quadratics: Quadratics) -> None:
    """τ full-batch steps take w to c + (I − ηA)^τ (w − c); the server takes the mean."""
    run = start(scheme="fedavg", rounds=4, local_steps=5, lr=0.3, **quadratics.keys)
    w = quadratics.init
    for _ in range(4):
        w = np.mean([descended(w, a, c, 0.3, 5) for a, c in clients(quadratics)], axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)


@pytest.mark.parametrize("weights", ["auto", "uniform"])
def test_fedavg_weighs_clients_by_their_examples_unless_told(start: Start, weights: str) -> None:
    """n_k / n in algorithm 1: the mean of what the clients would reach alone in a round."""
    keys: dict[str, Any] = {
        "rounds": 1, "local_steps": 2, "dtype": "float64", "save_predictors": True,
        "data": {"clients": 3, "partition": "dirichlet"}, "model": {"name": "linear"},
    }  # fmt: skip
    run, alone = start(scheme="fedavg", weights=weights, **keys), start(scheme="local", **keys)
    name = "output.weight"
    ends = [alone.predictor(row["client"], name) for row in run.clients]
    sizes = [int(row["train_examples"]) for row in run.clients]
    assert len(set(sizes)) == 3
    mean = np.average(ends, axis=0, weights=sizes if weights == "auto" else None)
    np.testing.assert_allclose(run.shared(name), mean, atol=EXACT, rtol=0)


def test_local_follows_its_closed_form(start: Start, quadratics: Quadratics) -> None:
    """Alone, a client does all its rounds in one go; the server never moves."""
    run = start(scheme="local", rounds=4, local_steps=5, lr=0.3, **quadratics.keys)
    for k, (a, c) in enumerate(clients(quadratics)):
        expected = descended(quadratics.init, a, c, 0.3, 20)
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)
    np.testing.assert_array_equal(run.shared(), quadratics.init)


def test_apfl_takes_the_step_derived_by_hand() -> None:
    """One joint step, every part from the values before it.

    f(w) = ½·2·(w − 1)², w = 3, v = 0, α = 0.25, η = 0.1, so v̄ = 0.25·0 + 0.75·3 = 2.25.

    - w: ∇f(3) = 4, so w = 3 − 0.1·4 = 2.6
    - v: α ∇f(v̄) = 0.25 · 2·1.25 = 0.625, so v = 0 − 0.1·0.625 = −0.0625
    - α: ⟨v − w, ∇f(v̄)⟩ = (0 − 3)·2.5 = −7.5, so α = 0.25 + 0.75 = 1.0
    """
    work = scalar_work(steps=1, lr=0.1, curvature=2.0, optimum=1.0)
    upload, personal = apfl.APFL().local_update(work, Model(number(3.0)), apfl_state(0.0, 0.25))
    assert upload.w["w"].item() == pytest.approx(2.6, abs=1e-15)
    assert personal.v["w"].item() == pytest.approx(-0.0625, abs=1e-15)
    assert personal.alpha.item() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize(("v", "moves"), [(1.0, +1), (5.0, -1)])
def test_apfl_alpha_moves_towards_the_better_model(v: float, moves: int) -> None:
    """On f = ½(w − 1)² with w = 3: an own model at the optimum gains weight, a worse one loses."""
    work = scalar_work(steps=1, lr=0.01, curvature=1.0, optimum=1.0)
    _, personal = apfl.APFL().local_update(work, Model(number(3.0)), apfl_state(v, 0.5))
    assert np.sign(personal.alpha.item() - 0.5) == moves


def test_apfl_alpha_stays_between_0_and_1() -> None:
    scheme = apfl.APFL(alpha_lr=100.0)
    work = scalar_work(steps=1, lr=0.1, curvature=2.0, optimum=1.0)
    for v, bound in ((1.0, 1.0), (9.0, 0.0)):
        _, personal = scheme.local_update(work, Model(number(3.0)), apfl_state(v, 0.5))
        assert personal.alpha.item() == bound


@given(
    w=st.floats(-3, 3), v=st.floats(-3, 3), alpha=st.floats(0.1, 0.9), curvature=st.floats(0.1, 3)
)
def test_apfl_moves_v_and_alpha_down_the_slope_of_the_mixture(
    w: float, v: float, alpha: float, curvature: float
) -> None:
    """(old − new)/η is ∂/∂v and ∂/∂α of f(αv + (1−α)w), by central differences."""
    lr, h = 1e-3, 1e-6

    def f(v: float, alpha: float) -> float:
        return 0.5 * curvature * (alpha * v + (1 - alpha) * w - 1.0) ** 2

    work = scalar_work(steps=1, lr=lr, curvature=curvature, optimum=1.0)
    _, new = apfl.APFL().local_update(work, Model(number(w)), apfl_state(v, alpha))
    slope_v = (f(v + h, alpha) - f(v - h, alpha)) / (2 * h)
    slope_alpha = (f(v, alpha + h) - f(v, alpha - h)) / (2 * h)
    assert (v - new.v["w"].item()) / lr == pytest.approx(slope_v, abs=1e-6)
    assert (alpha - new.alpha.item()) / lr == pytest.approx(slope_alpha, abs=1e-6)


@pytest.mark.parametrize("update", ["round", "step"])
@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_follows_the_recursion_of_its_paper(
    start: Start, quadratics: Quadratics, adaptive: bool, update: str
) -> None:
    """Algorithm 1 and equation 10 written out in NumPy, with gradients A(w − c)."""
    keys = {"alpha": 0.3, "adaptive": adaptive, "alpha_lr": 0.05, "alpha_update": update}
    run = start(scheme="apfl", rounds=3, local_steps=4, lr=0.3, apfl=keys, **quadratics.keys)
    shared = quadratics.init
    own = [(quadratics.init, 0.3) for _ in quadratics.a]
    for _ in range(3):
        uploads = []
        for k, (a, c) in enumerate(clients(quadratics)):
            w, (v, alpha) = shared, own[k]
            for step in range(4):
                slope = a @ (alpha * v + (1 - alpha) * w - c)
                learns = adaptive and (update == "step" or step == 0)
                new_alpha = np.clip(alpha - 0.05 * (v - w) @ slope, 0, 1) if learns else alpha
                w, v, alpha = w - 0.3 * a @ (w - c), v - 0.3 * alpha * slope, new_alpha
            own[k] = (v, alpha)
            uploads.append(w)
        shared = np.mean(uploads, axis=0)
    np.testing.assert_allclose(run.shared(), shared, atol=EXACT, rtol=0)
    for k, (v, alpha) in enumerate(own):
        kept = run.personal(f"{k:03}")
        np.testing.assert_allclose(kept["v/w"], v, atol=EXACT, rtol=0)
        np.testing.assert_allclose(kept["alpha"], alpha, atol=EXACT, rtol=0)
        mixture = alpha * v + (1 - alpha) * shared
        np.testing.assert_allclose(run.predictor(f"{k:03}"), mixture, atol=EXACT, rtol=0)


def test_apfl_can_predict_from_the_middle_of_a_round(start: Start, quadratics: Quadratics) -> None:
    """As its paper's figures do: three more local steps, which neither v, α nor w then remember."""
    keys: dict[str, Any] = {"rounds": 2, "local_steps": 4, "lr": 0.3, **quadratics.keys}
    before = start(scheme="apfl", apfl={"alpha": 0.3}, **keys)
    run = start(scheme="apfl", apfl={"alpha": 0.3, "predict_steps": 3}, **keys)
    np.testing.assert_array_equal(run.shared(), before.shared())
    for k, (a, c) in enumerate(clients(quadratics)):
        kept, w = run.personal(f"{k:03}"), run.shared()
        v, alpha = kept["v/w"], kept["alpha"]
        np.testing.assert_array_equal(v, before.personal(f"{k:03}")["v/w"])
        for step in range(3):
            slope = a @ (alpha * v + (1 - alpha) * w - c)
            new_alpha = alpha if step else np.clip(alpha - 0.3 * (v - w) @ slope, 0, 1)
            w, v, alpha = w - 0.3 * a @ (w - c), v - 0.3 * alpha * slope, new_alpha
        expected = alpha * v + (1 - alpha) * w
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


def test_an_average_over_training_takes_no_steps_after_it(
    start: Start, quadratics: Quadratics
) -> None:
    keys = {"output": "average", "predict_steps": 3}
    with pytest.raises(BadInput, match=r"^apfl\.predict-steps must be 0 with"):
        start(scheme="apfl", apfl=keys, **quadratics.keys)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_shares_bit_for_bit_what_fedavg_shares(
    start: Start, alpha: float, adaptive: bool
) -> None:
    """On real data, minibatches, unequal clients and partial participation."""
    keys: dict[str, Any] = {
        "rounds": 3,
        "clients_per_round": 3,
        "weights": "uniform",
        "data": {"clients": 5, "partition": "dirichlet"},
    }
    mixed = start(scheme="apfl", apfl={"alpha": alpha, "adaptive": adaptive}, **keys)
    assert mixed.sha == start(scheme="fedavg", **keys).sha


def test_apfl_with_alpha_0_predicts_with_the_shared_model(
    start: Start, quadratics: Quadratics
) -> None:
    run = start(scheme="apfl", apfl={"alpha": 0.0, "adaptive": False}, **quadratics.keys)
    for client in ("000", "001", "002"):
        np.testing.assert_array_equal(run.predictor(client), run.shared())


def test_apfl_with_alpha_1_is_local_training(start: Start, quadratics: Quadratics) -> None:
    mixed = start(scheme="apfl", apfl={"alpha": 1.0, "adaptive": False}, **quadratics.keys)
    alone = start(scheme="local", **quadratics.keys)
    for client in ("000", "001", "002"):
        np.testing.assert_array_equal(mixed.predictor(client), alone.predictor(client))


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 4),
    sampled=st.integers(0, 4),
    steps=st.integers(1, 4),
)
def test_fedavg_averages_whoever_was_sampled(
    start: Start, tmp_path: Path, seed: int, count: int, sampled: int, steps: int
) -> None:
    """Any quadratics, any sample of clients, any local steps: the mean of the closed forms."""
    sampled = min(sampled, count)
    problem = make_quadratics(tmp_path / f"{seed}.json", clients=count, size=2, seed=seed)
    run = start(
        scheme="fedavg",
        rounds=2,
        local_steps=steps,
        clients_per_round=sampled,
        seed=seed,
        lr=0.5,
        **problem.keys,
    )
    w = problem.init
    for event in run.events:
        assert len(event["clients"]) == (sampled or count)
        chosen = [int(client) for client in event["clients"]]
        w = np.mean([descended(w, problem.a[k], problem.c[k], 0.5, steps) for k in chosen], axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)
