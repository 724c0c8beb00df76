"""Weight decay and gradient clipping: what they mean in each scheme, by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Model, Work
from bouquet.core.trees import Nothing
from bouquet.settings import parse
from bouquet.strategies import SCHEMES, apfl, plsgd
from bouquet.strategies.perfedavg import PerFedAvg
from tests.conftest import Quadratics, Run
from tests.unit.algebra import EXACT, clients, descended, number, scalar_work

Start = Callable[..., Run]
QUARTER = torch.tensor(0.25, dtype=torch.float64)


def decaying(steps: int = 1, lr: float = 0.1, in_loss: float = 0.0, decoupled: float = 0.0) -> Work:
    """Local work on f(w) = ½·2·(w − 1)² with one of the two kinds of decay."""
    work = scalar_work(steps=steps, lr=lr, curvature=2.0, optimum=1.0)
    return replace(
        work,
        task=replace(work.task, weight_decay=in_loss),
        sgd=replace(work.sgd, decoupled_decay=decoupled),
    )


def plsgd_step(in_loss: float = 0.0, decoupled: float = 0.0) -> tuple[float, float]:
    """w and θ after a step from 3 and −1 with α = 0.5."""
    scheme, state = plsgd.PLSGD(alpha=0.5), plsgd.Personal(number(-1.0))
    work = decaying(in_loss=in_loss, decoupled=decoupled)
    upload, personal = scheme.local_update(work, Model(number(3.0)), state)
    return upload.w["w"].item(), personal.theta["w"].item()


# In the loss


def test_apfl_decays_at_the_mixture() -> None:
    """w = 3, v = 0, α = 0.25, so v̄ = 2.25; λ = 0.5, η = 0.1, and 0.01 for α.

    - w: 2·2 + 0.5·3 = 5.5, so w = 2.45
    - at v̄: 2·1.25 + 0.5·2.25 = 3.625, so v = −0.1·0.25·3.625
    - α: (0 − 3)·3.625 = −10.875, so α = 0.25 + 0.10875
    """
    work = decaying(in_loss=0.5)
    state = apfl.Personal(number(0.0), QUARTER)
    upload, personal = apfl.APFL(alpha_lr=0.01).local_update(work, Model(number(3.0)), state)
    assert upload.w["w"].item() == pytest.approx(2.45, abs=1e-15)
    assert personal.v["w"].item() == pytest.approx(-0.090625, abs=1e-15)
    assert personal.alpha.item() == pytest.approx(0.35875, abs=1e-15)


def test_plsgd_decays_at_the_sum() -> None:
    """w = 3, θ = −1: g = 2·(2 − 1) + 0.5·2 = 3, so w = 3 − 0.3 and θ = −1 − 0.5·0.3."""
    assert plsgd_step(in_loss=0.5) == pytest.approx((2.7, -1.15), abs=1e-15)


@pytest.mark.parametrize(
    ("mode", "end"), [("exact", 2.38125), ("hessian-free", 2.38125), ("first-order", 2.175)]
)
def test_perfedavg_decays_inside_the_meta_gradient(mode: str, end: float) -> None:
    """w = 3, a = 0.1, b = 0.2: ∇f = 4 + 1.5 = 5.5, so w̃ = 2.45 and g = 2·1.45 + 0.5·2.45 = 4.125.

    The Hessian is 2 + 0.5: w = 3 − 0.2·(1 − 0.25)·4.125, and without it 3 − 0.2·4.125.
    """
    work = decaying(steps=3, lr=0.2, in_loss=0.5)
    upload, _ = PerFedAvg(inner_lr=0.1, mode=mode).local_update(work, Model(number(3.0)), Nothing())
    assert upload.w["w"].item() == pytest.approx(end, abs=1e-12)


def test_perfedavg_adapts_on_the_decaying_loss() -> None:
    work = decaying(in_loss=0.5)
    adapted = PerFedAvg(inner_lr=0.1).predictor(work, Model(number(3.0)), Nothing())
    assert adapted["w"].item() == pytest.approx(2.45, abs=1e-15)


@pytest.mark.parametrize("kind", ["weight_decay", "decoupled_weight_decay"])
def test_decay_of_fedavg_is_plain_l2(start: Start, quadratics: Quadratics, kind: str) -> None:
    """f + (λ/2)‖w‖² is a quadratic of curvature A + λI around (A + λI)⁻¹Ac.

    Without clipping the decoupled kind takes the same steps. No reported loss contains it.
    """
    keys = {"rounds": 3, "local_steps": 4, "lr": 0.3, kind: 0.4}
    run = start(scheme="fedavg", **keys, **quadratics.keys)
    w, pull = quadratics.init, 0.4 * np.eye(3)
    for _ in range(3):
        w = np.mean(
            [
                descended(w, a + pull, np.linalg.solve(a + pull, a @ c), 0.3, 4)
                for a, c in clients(quadratics)
            ],
            axis=0,
        )
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)
    loss = np.mean([0.5 * (w - c) @ a @ (w - c) for a, c in clients(quadratics)])
    assert run.summary["shared"]["loss"]["mean"] == pytest.approx(loss, abs=EXACT)


def test_decay_in_the_loss_counts_towards_the_bound(start: Start, quadratics: Quadratics) -> None:
    """One step of 0.5 with bound 0.01 goes 0.005 along −(A(w − c) + λw)."""
    keys = {"rounds": 1, "local_steps": 1, "lr": 0.5, "grad_clip": 0.01, "weight_decay": 2.0}
    run = start(scheme="local", **keys, **quadratics.keys)
    a, c = clients(quadratics)[0]
    slope = a @ (quadratics.init - c) + 2.0 * quadratics.init
    expected = quadratics.init - 0.5 * 0.01 * slope / np.linalg.norm(slope)
    np.testing.assert_allclose(run.predictor("000"), expected, atol=EXACT, rtol=0)


def test_mocha_has_a_decay_of_its_own() -> None:
    for name in ("weight-decay", "decoupled-weight-decay"):
        with pytest.raises(BadInput, match=rf"{name} must be 0 for mocha.*mocha\.ridge"):
            parse({"scheme": "mocha", "model.name": "linear", name: 0.1})


# Beside the gradient


def test_decoupled_decay_of_plsgd_follows_each_parts_step() -> None:
    """g = 2 at w + θ = 2: w = 3 − 0.1·(2 + 0.5·3), θ = −1 − 0.05·(2 + 0.5·(−1))."""
    assert plsgd_step(decoupled=0.5) == pytest.approx((2.65, -1.075), abs=1e-15)


def test_decoupled_decay_of_apfl_leaves_alpha_alone() -> None:
    """As without decay (slopes 4 and 0.625), and w and v lose 0.1·0.5 of themselves."""
    work = decaying(decoupled=0.5)
    state = apfl.Personal(number(1.0), QUARTER)
    upload, personal = apfl.APFL(alpha_lr=0.01).local_update(work, Model(number(3.0)), state)
    assert upload.w["w"].item() == pytest.approx(3 - 0.4 - 0.15, abs=1e-15)
    # v̄ = 2.5, so ∇f = 3: v = 1 − 0.1·0.25·3 − 0.05 and α = 0.25 + 0.01·2·3.
    assert personal.v["w"].item() == pytest.approx(0.875, abs=1e-15)
    assert personal.alpha.item() == pytest.approx(0.31, abs=1e-15)


# Clipping


def test_the_papers_way_to_clip_is_the_schemes_own() -> None:
    """One bound for u and v of partial personalization, one for each half of the others."""
    told = {name: parse({"scheme": name, "grad-clip": 1.0}).sgd for name in SCHEMES}
    assert all(sgd.clip == 1.0 for sgd in told.values())
    partial = {"fedsim", "fedalt", "fedbn", "fedper", "fedrep", "lg-fedavg", "fedbabu", "tune"}
    assert {name for name, sgd in told.items() if sgd.clip_all} == partial
    for over, together in (("all", True), ("parts", False)):
        assert parse({"scheme": "apfl", "grad-clip-over": over}).sgd.clip_all == together
        assert parse({"scheme": "fedsim", "grad-clip-over": over}).sgd.clip_all == together


CLIPPED: dict[str, Any] = {
    "rounds": 2, "weights": "uniform", "grad_clip": 0.05,
    "data": {"clients": 4, "partition": "dirichlet"}, "model": {"hidden": 8},
}  # fmt: skip


@pytest.mark.parametrize(("scheme", "keys"), [("apfl", {}), ("plsgd", {"plsgd": {"alpha": 0.0}})])
def test_the_half_that_is_fedavg_is_clipped_as_fedavg_is(
    start: Start, scheme: str, keys: dict[str, Any]
) -> None:
    plain = start(scheme="fedavg", **CLIPPED)
    assert start(scheme=scheme, **keys, **CLIPPED).sha == plain.sha
    assert start(scheme=scheme, grad_clip_over="all", **keys, **CLIPPED).sha != plain.sha
