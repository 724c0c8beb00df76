"""Personalized Local SGD against its paper."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bouquet.core.scheme import Federation, Model, Round
from bouquet.strategies.plsgd import PLSGD, Personal
from tests.conftest import Quadratics, Run
from tests.unit.algebra import EXACT, clients, number, scalar_work

Start = Callable[..., Run]


def test_it_takes_the_step_derived_by_hand() -> None:
    """w = 3, θ = −1 on ½·2·(v − 1)²: g = 2·(2 − 1) = 2 moves both; η = 0.1, α = 0.5.

    w = 3 − 0.2 = 2.8 and θ = −1 − 0.1 = −1.1.
    """
    work = scalar_work(steps=1, lr=0.1, curvature=2.0, optimum=1.0)
    own = Personal(number(-1.0))
    upload, personal = PLSGD(alpha=0.5).local_update(work, Model(number(3.0)), own)
    assert upload.w["w"].item() == pytest.approx(2.8, abs=1e-15)
    assert personal.theta["w"].item() == pytest.approx(-1.1, abs=1e-15)


def test_it_follows_the_recursion_of_its_paper(start: Start, quadratics: Quadratics) -> None:
    """Algorithm 1 in NumPy, with an outer step β of 0.7."""
    keys = {"plsgd": {"alpha": 0.8, "beta": 0.7}}
    run = start(scheme="plsgd", rounds=4, local_steps=3, lr=0.2, **keys, **quadratics.keys)
    shared = quadratics.init
    theta = [np.zeros(3) for _ in quadratics.a]
    for _ in range(4):
        uploads = []
        for k, (a, c) in enumerate(clients(quadratics)):
            w = shared
            for _ in range(3):
                g = a @ (w + theta[k] - c)
                w, theta[k] = w - 0.2 * g, theta[k] - 0.8 * 0.2 * g
            uploads.append(w)
        shared = shared + 0.7 * (np.mean(uploads, axis=0) - shared)
    np.testing.assert_allclose(run.shared(), shared, atol=EXACT, rtol=0)
    for k in range(3):
        expected = shared + theta[k]
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


def test_without_personalization_it_is_fedavg_bit_for_bit(start: Start) -> None:
    keys: dict[str, Any] = {
        "rounds": 3,
        "clients_per_round": 3,
        "weights": "uniform",
        "data": {"clients": 5, "partition": "dirichlet"},
    }
    run = start(scheme="plsgd", plsgd={"alpha": 0.0, "beta": 1.0}, **keys)
    assert run.sha == start(scheme="fedavg", **keys).sha


def test_without_communication_the_clients_train_alone(
    start: Start, quadratics: Quadratics
) -> None:
    """β = 0 leaves w at its start; w is thrown away each round, θ alone goes on."""
    run = start(scheme="plsgd", rounds=2, plsgd={"beta": 0.0}, **quadratics.keys)
    np.testing.assert_array_equal(run.shared(), quadratics.init)


@pytest.mark.parametrize("steps", [1, 4, 10])
@pytest.mark.parametrize("lr", [0.05, 0.3, 0.9])
def test_proposition_1_consensus_error_without_personalization(steps: int, lr: float) -> None:
    """Two clients with ½(v − (v* ± ζ))²: equation 20, to machine precision."""
    zeta, k = 1.7, steps
    errors = consensus_errors(alpha=0.0, lr=lr, steps=k, rounds=6, zeta=zeta)
    expected = zeta**2 * (
        1 + (1 - (1 - lr) ** (2 * k)) / ((2 - lr) * lr * k) - 2 * (1 - (1 - lr) ** k) / (lr * k)
    )
    assert np.mean(errors) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_proposition_1_consensus_error_with_personalization(alpha: float) -> None:
    """Under the bound of equation 21, and on its way to 0 as rounds go by."""
    lr, k, zeta = 0.5 / (1 + alpha), 5, 1.0
    fast = lr * (1 + alpha)
    means = []
    for rounds in (4, 16, 64):
        errors = consensus_errors(alpha, lr, k, rounds, zeta)
        bound = (zeta**2 / (1 + alpha)) * (1 - (1 - (1 - fast) ** k) / (fast * k))
        bound *= (1 - (1 - fast) ** rounds) / (fast * rounds)
        assert np.mean(errors) <= bound
        means.append(np.mean(errors))
    assert means[2] < means[1] / 3 < means[0] / 9


def consensus_errors(alpha: float, lr: float, steps: int, rounds: int, zeta: float) -> list[float]:
    """½ Σ_m ‖w_t^m − w̄_t‖² at every step t, by the scheme's own methods; v* = 0.3."""
    scheme = PLSGD(alpha=alpha)
    optima = (0.3 - zeta, 0.3 + zeta)
    server = Model(number(5.0))
    theta = [Personal(number(0.0)) for _ in optima]
    errors = []
    for _ in range(rounds):
        for taken in range(steps):
            w = [
                step(scheme, lr, taken, c, server, own)[0]
                for c, own in zip(optima, theta, strict=True)
            ]
            values = [upload.w["w"].item() for upload in w]
            errors.append(float(np.var(values)))
        ends = [
            step(scheme, lr, steps, c, server, own) for c, own in zip(optima, theta, strict=True)
        ]
        theta = [own for _, own in ends]
        mean = sum(upload.w["w"].item() for upload, _ in ends) / 2
        uploads = Round(Model(number(mean)), ("000", "001"), Federation())
        server = scheme.aggregate(server, uploads)
    return errors


def step(
    scheme: PLSGD, lr: float, taken: int, optimum: float, server: Model, own: Personal
) -> tuple[Model, Personal]:
    work = scalar_work(steps=taken, lr=lr, curvature=1.0, optimum=optimum)
    return scheme.local_update(work, scheme.downlink(server, ["000"]), own)
