"""Averaged outputs (APFL's theorem 3, Options II and III), and figure 1b."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bouquet.core.errors import BadInput
from tests.conftest import Array, Quadratics, Run
from tests.unit.algebra import EXACT, clients

Start = Callable[..., Run]


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfl_averages_as_theorem_3_says(
    start: Start, quadratics: Quadratics, adaptive: bool
) -> None:
    """v̂_i = Σ p_t (α_i v_i^t + (1 − α_i) mean_j w_j^t) / S_T over every single step t."""
    a0, tau, rounds = 2.5, 3, 4
    keys = {"output": "average", "output_offset": a0, "alpha": 0.3, "adaptive": adaptive,
            "alpha_lr": 0.05}  # fmt: skip
    run = start(scheme="apfl", rounds=rounds, local_steps=tau, lr=0.3, apfl=keys, **quadratics.keys)
    w = [quadratics.init] * 3
    v, alpha = [quadratics.init] * 3, [0.3] * 3
    weights, w_path, v_path = [], [], []
    for t in range(1, rounds * tau + 1):
        for k, (a, c) in enumerate(clients(quadratics)):
            slope = a @ (alpha[k] * v[k] + (1 - alpha[k]) * w[k] - c)
            learns = adaptive and (t - 1) % tau == 0
            new = np.clip(alpha[k] - 0.05 * (v[k] - w[k]) @ slope, 0, 1) if learns else alpha[k]
            w[k], v[k], alpha[k] = w[k] - 0.3 * a @ (w[k] - c), v[k] - 0.3 * alpha[k] * slope, new
        weights.append((t + a0) ** 2)
        w_path.append(np.mean(w, axis=0))
        v_path.append(list(v))
        if t % tau == 0:
            w = [np.mean(w, axis=0)] * 3
    shared = np.average(w_path, axis=0, weights=weights)
    for k in range(3):
        own = np.average([step[k] for step in v_path], axis=0, weights=weights)
        output = alpha[k] * own + (1 - alpha[k]) * shared
        np.testing.assert_allclose(run.predictor(f"{k:03}"), output, atol=EXACT, rtol=0)
    np.testing.assert_allclose(run.server()["trail/w"], shared, atol=EXACT, rtol=0)


def test_apfl_counts_steps_for_its_average(start: Start) -> None:
    with pytest.raises(BadInput, match=r"apfl\.output must be 'last' with local-epochs"):
        start(scheme="apfl", local_epochs=1, apfl={"output": "average"}, data={"clients": 4})


@pytest.mark.parametrize("output", ["mean-shared", "mean-own"])
def test_plsgd_averages_as_options_2_and_3_say(
    start: Start, quadratics: Quadratics, output: str
) -> None:
    """Averages over t = 0, …, T − 1 of mean_m w_t^m + θ_t^m, or of w_t^m + θ_t^m."""
    keys = {"alpha": 0.7, "beta": 0.9, "output": output}
    run = start(scheme="plsgd", rounds=4, local_steps=3, lr=0.2, plsgd=keys, **quadratics.keys)
    shared = quadratics.init
    theta = [np.zeros(3)] * 3
    w_path: list[list[Array]] = []
    theta_path: list[list[Array]] = []
    for _ in range(4):
        w = [shared] * 3
        for _ in range(3):
            w_path.append(list(w))
            theta_path.append(list(theta))
            for k, (a, c) in enumerate(clients(quadratics)):
                g = a @ (w[k] + theta[k] - c)
                w[k], theta[k] = w[k] - 0.2 * g, theta[k] - 0.7 * 0.2 * g
        shared = shared + 0.9 * (np.mean(w, axis=0) - shared)
    for k in range(3):
        moved = np.array(w_path)
        own = moved.mean(axis=1) if output == "mean-shared" else moved[:, k]
        expected = (own + np.array(theta_path)[:, k]).mean(axis=0)
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize(
    ("scheme", "output"), [("apfl", "average"), ("plsgd", "mean-shared"), ("plsgd", "mean-own")]
)
def test_an_averaged_output_changes_nothing_but_the_output(
    start: Start, scheme: str, output: str
) -> None:
    """On minibatches, w moves bit for bit as it does without."""
    keys: dict[str, Any] = {"rounds": 2, "data": {"clients": 3}, "model": {"name": "linear"}}
    last = start(scheme=scheme, **keys)
    averaged = start(scheme=scheme, **{scheme: {"output": output}}, **keys)
    np.testing.assert_array_equal(averaged.shared("output.weight"), last.shared("output.weight"))
    assert averaged.summary["personal"] != last.summary["personal"]


@pytest.mark.parametrize("scheme", ["apfl", "plsgd"])
def test_averages_survive_a_stop_and_unequal_clients(start: Start, scheme: str) -> None:
    keys: dict[str, Any] = {
        "scheme": scheme, "clients_per_round": 2, "local_steps": 2,
        "apfl": {"output": "average"}, "plsgd": {"output": "mean-shared"},
        "data": {"clients": 4, "partition": "dirichlet"}, "model": {"hidden": 4, "layers": 1},
    }  # fmt: skip
    whole = start(rounds=4, **keys)
    half = start(rounds=2, **keys)
    resumed = start(rounds=4, folder=half.path, resume=True, **keys)
    assert (resumed.sha, resumed.clients) == (whole.sha, whole.clients)


def figure_1b(start: Start, folder: Path, rounds: int, alpha: float) -> Run:
    """F_1 = (x − 7)² + 2(y − 18)² − 1 and F_2 = 2(x − 18)² + (y − 13)² − 1 from the origin."""
    entries = [{"A": [[2, 0], [0, 4]], "c": [7, 18]}, {"A": [[4, 0], [0, 2]], "c": [18, 13]}]
    file = folder / "figure.json"
    file.write_text(json.dumps({"init": [0.0, 0.0], "clients": entries}))
    return start(
        scheme="plsgd", rounds=rounds, local_steps=3, lr=0.05, plsgd={"alpha": alpha},
        dtype="float64", batch_size=0, save_predictors=True, eval_every=0,
        data={"name": "quadratic", "path": str(file)},
    )  # fmt: skip


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_figure_1b_trajectories(start: Start, tmp_path: Path, alpha: float) -> None:
    """η = 0.05, K = 3, R = 8, each round's models against the recursion in closed form.

    With α = 1 a step on v = w + θ is twice as long: v − v* shrinks by 1 − 2ηA, and w moves by
    half of what v does. Without, w itself shrinks by 1 − ηA.
    """
    curvature = np.array([[2.0, 4.0], [4.0, 2.0]])
    optima = np.array([[7.0, 18.0], [18.0, 13.0]])
    w, theta = np.zeros(2), np.zeros((2, 2))
    for rounds in range(1, 9):
        v = w + theta
        end = optima + (1 - (1 + alpha) * 0.05 * curvature) ** 3 * (v - optima)
        moved = (end - v) / (1 + alpha)
        w, theta = w + moved.mean(axis=0), theta + alpha * moved
        run = figure_1b(start, tmp_path, rounds, alpha)
        np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)
        for k in range(2):
            expected = w + theta[k]
            np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)
    if alpha:  # each machine has come near its own optimum, as the figure shows
        assert np.abs(w + theta - optima).max() < 0.5 * np.abs(w - optima).max()


def test_figure_1b_personal_models_reach_their_own_optima(start: Start, tmp_path: Path) -> None:
    with_theta = figure_1b(start, tmp_path, rounds=60, alpha=1.0)
    without = figure_1b(start, tmp_path, rounds=60, alpha=0.0)
    for k, optimum in enumerate(([7.0, 18.0], [18.0, 13.0])):
        np.testing.assert_allclose(with_theta.predictor(f"{k:03}"), optimum, atol=1e-6)
        assert np.abs(without.predictor(f"{k:03}") - optimum).max() > 1
