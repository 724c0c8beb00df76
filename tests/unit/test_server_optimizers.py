"""Server optimizers: their recursions on rounds in closed form, for schemes that average."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bouquet.core.errors import BadInput
from bouquet.strategies import SCHEMES
from tests.conftest import Array, Quadratics, Run
from tests.unit.algebra import EXACT, clients, descended

Start = Callable[..., Run]
AVERAGING = [name for name, scheme in SCHEMES.items() if scheme().averages]


def expected(problem: Quadratics, kind: str, rounds: int, lr: float) -> Array:
    """FedAvg's rounds with the server's step written out in NumPy."""
    w = problem.init
    m, v = np.zeros(3), np.zeros(3)
    b1, b2, tau = 0.8, 0.95, 1e-2
    for t in range(1, rounds + 1):
        mean = np.mean([descended(w, a, c, 0.3, 4) for a, c in clients(problem)], axis=0)
        delta = mean - w
        if kind == "mean":
            w = w + lr * delta
        elif kind == "momentum":
            m = b1 * m + delta
            w = w + lr * m
        else:
            m = b1 * m + (1 - b1) * delta
            if kind == "adam":
                v = b2 * v + (1 - b2) * delta**2
                # Flower corrects the bias with t + 1.
                step = lr * np.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
            else:
                v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
                step = lr
            w = w + step * m / (np.sqrt(v) + tau)
    return w


@pytest.mark.parametrize("kind", ["mean", "momentum", "adam", "yogi"])
def test_an_optimizer_follows_its_recursion(
    start: Start, quadratics: Quadratics, kind: str
) -> None:
    run = start(
        scheme="fedavg", rounds=6, local_steps=4, lr=0.3, server_optimizer=kind, server_lr=0.5,
        server_beta1=0.8, server_beta2=0.95, server_tau=1e-2, **quadratics.keys,
    )  # fmt: skip
    found = expected(quadratics, kind, 6, 0.5)
    np.testing.assert_allclose(run.shared(), found, atol=EXACT, rtol=0)


def test_the_mean_with_step_1_is_the_mean(start: Start, quadratics: Quadratics) -> None:
    plain = start(scheme="fedavg", rounds=3, **quadratics.keys)
    told = start(
        scheme="fedavg", rounds=3, server_optimizer="mean", server_lr=1.0, **quadratics.keys
    )
    assert plain.sha == told.sha


@pytest.mark.parametrize("scheme", AVERAGING)
def test_every_scheme_that_averages_takes_an_optimizer_and_resumes_with_it(
    start: Start, scheme: str
) -> None:
    """The moments are in the checkpoint: a resumed run ends as one never stopped."""
    keys: dict[str, Any] = {
        "scheme": scheme, "server_optimizer": "adam", "server_lr": 0.05, "local_steps": 2,
        "data": {"clients": 3}, "model": {"hidden": 4, "layers": 1}, "weights": "auto",
    }  # fmt: skip
    whole = start(rounds=4, **keys)
    half = start(rounds=2, **keys)
    resumed = start(rounds=4, folder=half.path, resume=True, **keys)
    assert resumed.sha == whole.sha
    assert (
        whole.sha
        != start(**(keys | {"rounds": 4, "server_optimizer": "mean", "server_lr": 1.0})).sha
    )


def test_a_scheme_that_does_not_average_refuses(start: Start) -> None:
    with pytest.raises(BadInput, match="server-optimizer must be 'mean' and server-lr 1 for local"):
        start(scheme="local", server_optimizer="adam")
