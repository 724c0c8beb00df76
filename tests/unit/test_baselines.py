"""FedProx, SCAFFOLD, Ditto, pFedMe and fine-tuning against algebra."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bouquet.core.scheme import Federation, Member, Model, Round
from bouquet.core.trees import Nothing
from bouquet.strategies import ditto, scaffold
from bouquet.strategies.fedprox import FedProx
from bouquet.strategies.pfedme import PFedMe
from tests.conftest import Quadratics, Run, make_quadratics
from tests.unit.algebra import EXACT, clients, descended, number, scalar_work

Start = Callable[..., Run]


def test_fedprox_takes_the_steps_derived_by_hand() -> None:
    """Two steps from w = 3 on ½·2·(w − 1)² with μ = 1, η = 0.1.

    First ∇ = 2·2 + 1·0 = 4, so w = 2.6; then ∇ = 2·1.6 + (2.6 − 3) = 2.8, so w = 2.32. A
    penalty without a gradient would give 2.6 − 0.32 = 2.28.
    """
    work = scalar_work(steps=2, lr=0.1, curvature=2.0, optimum=1.0)
    upload, _ = FedProx(mu=1.0).local_update(work, Model(number(3.0)), Nothing())
    assert upload.w["w"].item() == pytest.approx(2.32, abs=1e-15)


def test_fedprox_follows_its_closed_form(start: Start, quadratics: Quadratics) -> None:
    """The objective is a quadratic of curvature A + μI whose optimum moves with w."""
    keys = {"fedprox": {"mu": 0.7}}
    run = start(scheme="fedprox", rounds=3, local_steps=4, lr=0.3, **keys, **quadratics.keys)
    w, eye = quadratics.init, np.eye(3)
    for _ in range(3):
        uploads = []
        for a, c in clients(quadratics):
            centre = np.linalg.solve(a + 0.7 * eye, a @ c + 0.7 * w)
            uploads.append(descended(w, a + 0.7 * eye, centre, 0.3, 4))
        w = np.mean(uploads, axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)


def test_fedprox_without_a_pull_is_fedavg(start: Start) -> None:
    data = {"clients": 4, "partition": "dirichlet"}
    prox = start(scheme="fedprox", rounds=2, fedprox={"mu": 0.0}, data=data)
    plain = start(scheme="fedavg", rounds=2, data=data)
    assert prox.summary["shared"] == plain.summary["shared"]


def test_ditto_takes_the_steps_derived_by_hand() -> None:
    """v = 0 on ½·2·(v − 1)² + ½λ(v − 3)², λ = 1, η = 0.1, two steps; w as in FedAvg.

    v: ∇ = 2·(0 − 1) + (0 − 3) = −5, so v = 0.5; ∇ = −1 − 2.5 = −3.5, so v = 0.85. The pull is
    towards the w that was received: towards the moving w it would be another number.
    """
    work = scalar_work(steps=2, lr=0.1, curvature=2.0, optimum=1.0)
    scheme, own = ditto.Ditto(strength=1.0), ditto.Personal(number(0.0))
    upload, personal = scheme.local_update(work, Model(number(3.0)), own)
    assert personal.v["w"].item() == pytest.approx(0.85, abs=1e-15)
    assert upload.w["w"].item() == pytest.approx(1 + 0.8**2 * 2, abs=1e-15)


@pytest.mark.parametrize("own", [0, 2, 7])
def test_ditto_follows_its_closed_form(start: Start, quadratics: Quadratics, own: int) -> None:
    """v goes to the optimum of f + (λ/2)‖v − w‖² by the powers of I − η(A + λI)."""
    keys = {"ditto": {"lambda": 0.5, "personal_steps": own}}
    run = start(scheme="ditto", rounds=3, local_steps=4, lr=0.3, **keys, **quadratics.keys)
    w, eye = quadratics.init, np.eye(3)
    v = [w for _ in quadratics.a]
    for _ in range(3):
        for k, (a, c) in enumerate(clients(quadratics)):
            centre = np.linalg.solve(a + 0.5 * eye, a @ c + 0.5 * w)
            v[k] = descended(v[k], a + 0.5 * eye, centre, 0.3, own or 4)
        w = np.mean([descended(w, a, c, 0.3, 4) for a, c in clients(quadratics)], axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)
    for k, expected in enumerate(v):
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


def test_ditto_without_a_pull_is_local_and_shares_what_fedavg_shares(start: Start) -> None:
    keys: dict[str, Any] = {"rounds": 2, "weights": "uniform", "data": {"clients": 4}}
    own = start(scheme="ditto", ditto={"lambda": 0.0}, **keys)
    assert own.sha == start(scheme="fedavg", **keys).sha
    alone = start(scheme="local", **keys)
    assert own.summary["personal"] == alone.summary["personal"]


def test_pfedme_takes_the_step_derived_by_hand() -> None:
    """One local step from w = 3 on ½·2·(θ − 1)² with λ = 1, K = 2 inner steps of 0.1, η = 0.5.

    θ starts at w: ∇ = 2·2 + 0 = 4, θ = 2.6; ∇ = 3.2 + (2.6 − 3) = 2.8, θ = 2.32.
    w moves by −η λ (w − θ) = −0.5·0.68, so w = 2.66.
    """
    scheme = PFedMe(strength=1.0, inner_steps=2, inner_lr=0.1)
    work = scalar_work(steps=1, lr=0.5, curvature=2.0, optimum=1.0)
    personal = scheme.init_personal(work.task, 1)
    upload, personal = scheme.local_update(work, Model(number(3.0)), personal)
    assert personal.theta["w"].item() == pytest.approx(2.32, abs=1e-15)
    assert upload.w["w"].item() == pytest.approx(2.66, abs=1e-15)


def test_pfedme_follows_the_recursion_of_its_paper(start: Start, quadratics: Quadratics) -> None:
    """Algorithm 1 in NumPy; the personal metric is θ's, and θ goes on from round to round."""
    keys = {"pfedme": {"lambda": 2.0, "inner_steps": 3, "inner_lr": 0.1, "beta": 0.6}}
    run = start(scheme="pfedme", rounds=3, local_steps=2, lr=0.2, **keys, **quadratics.keys)
    shared = quadratics.init
    theta: list[Any] = [None for _ in quadratics.a]
    for _ in range(3):
        uploads = []
        for k, (a, c) in enumerate(clients(quadratics)):
            w = shared
            own = w if theta[k] is None else theta[k]
            for _ in range(2):
                for _ in range(3):
                    own = own - 0.1 * (a @ (own - c) + 2.0 * (own - w))
                w = w - 0.2 * 2.0 * (w - own)
            theta[k] = own
            uploads.append(w)
        shared = 0.4 * shared + 0.6 * np.mean(uploads, axis=0)
    np.testing.assert_allclose(run.shared(), shared, atol=EXACT, rtol=0)
    for k, expected in enumerate(theta):
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


def test_scaffold_takes_the_step_derived_by_hand() -> None:
    """Two steps from w = 3 on ½·2·(w − 1)², c = 1, c_i = 0.5, η = 0.1.

    Each slope is 2(w − 1) + 0.5: 4.5, so w = 2.55; 3.6, so w = 2.19. Δw = −0.81 and
    c_i⁺ = 0.5 − 1 + 0.81/(2·0.1) = 3.55, so Δc = 3.05.
    """
    work = scalar_work(steps=2, lr=0.1, curvature=2.0, optimum=1.0)
    payload, own = scaffold.Pair(number(3.0), number(1.0)), scaffold.Personal(number(0.5))
    upload, personal = scaffold.Scaffold().local_update(work, payload, own)
    assert upload.w["w"].item() == pytest.approx(-0.81, abs=1e-14)
    assert personal.c["w"].item() == pytest.approx(3.55, abs=1e-13)
    assert upload.c["w"].item() == pytest.approx(3.05, abs=1e-13)


def test_scaffolds_server_takes_the_step_derived_by_hand() -> None:
    """w = 3, c = 1; one of four clients sends Δw = −0.8, Δc = 2; η_g = 0.5.

    w = 3 + 0.5·(−0.8) = 2.6 and c = 1 + (1/4)·2 = 1.5.
    """
    everyone = Federation({f"{k:03}": Member(1) for k in range(4)})
    uploads = Round(scaffold.Pair(number(-0.8), number(2.0)), ("002",), everyone)
    server = scaffold.Pair(number(3.0), number(1.0))
    new = scaffold.Scaffold(server_lr=0.5).aggregate(server, uploads)
    assert new.w["w"].item() == pytest.approx(2.6, abs=1e-15)
    assert new.c["w"].item() == pytest.approx(1.5, abs=1e-15)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 5))
def test_scaffold_keeps_the_sum_of_control_variates(
    start: Start, tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int
) -> None:
    """Σ c_i = N c after every round with all clients, whatever the problem."""
    path = tmp_path_factory.mktemp("problem") / "problem.json"
    problem = make_quadratics(path, clients=3, size=2, seed=seed)
    run = start(scheme="scaffold", rounds=3, local_steps=steps, lr=0.3, **problem.keys)
    total = sum(run.personal(f"{k:03}")["c/w"] for k in range(3))
    np.testing.assert_allclose(total, 3 * run.server()["c/w"], atol=EXACT, rtol=0)


def test_scaffold_keeps_the_sum_also_when_few_take_part(
    start: Start, quadratics: Quadratics
) -> None:
    """c moves by (K/N) mean Δc = (1/N) Σ Δc_i, so the sum holds for any sample."""
    run = start(scheme="scaffold", rounds=5, clients_per_round=2, lr=0.2, **quadratics.keys)
    total = sum(run.personal(f"{k:03}")["c/w"] for k in range(3))
    np.testing.assert_allclose(total, 3 * run.server()["c/w"], atol=EXACT, rtol=0)


def test_scaffold_finds_the_global_optimum_where_fedavg_does_not(
    start: Start, quadratics: Quadratics
) -> None:
    """The optimum of Σ ½(w − c)ᵀA(w − c) is (ΣA)⁻¹ ΣAc."""
    optimum = np.linalg.solve(sum(quadratics.a), sum(a @ c for a, c in clients(quadratics)))
    keys: dict[str, Any] = {"rounds": 80, "local_steps": 8, "lr": 0.3, "eval_every": 0}
    corrected = start(scheme="scaffold", **keys, **quadratics.keys)
    drifting = start(scheme="fedavg", **keys, **quadratics.keys)
    np.testing.assert_allclose(corrected.shared(), optimum, atol=1e-6, rtol=0)
    assert np.abs(drifting.shared() - optimum).max() > 1e-3


def test_fine_tuning_follows_its_closed_form(start: Start, quadratics: Quadratics) -> None:
    """The predictor is the shared model after the client's own steps; the server is FedAvg's."""
    keys = {"finetune": {"steps": 6}}
    run = start(scheme="finetune", rounds=2, local_steps=3, lr=0.3, **keys, **quadratics.keys)
    plain = start(scheme="fedavg", rounds=2, local_steps=3, lr=0.3, **quadratics.keys)
    assert run.sha == plain.sha
    for k, (a, c) in enumerate(clients(quadratics)):
        expected = descended(run.shared(), a, c, 0.3, 6)
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


def test_fine_tuning_by_no_step_is_fedavg(start: Start) -> None:
    run = start(scheme="finetune", rounds=2, finetune={"steps": 0}, data={"clients": 4})
    assert run.summary["personal"] == run.summary["shared"]


def test_fine_tuning_looks_at_training_data_alone() -> None:
    """Batches to adapt on are drawn from the client's training part."""
    from bouquet.client_app.node import Node
    from bouquet.client_app.stores import MemoryStore
    from bouquet.core.batches import Plan
    from bouquet.problem import problem
    from bouquet.settings import parse

    chosen = parse({"scheme": "finetune", "data.clients": 4})
    node = Node(chosen, problem(chosen), ("000",), MemoryStore())
    batches = node._batches(["000"], Plan(50, 0, 5), "adapt", 1)
    data = node.problem.data
    train = {tuple(row) for row in data.x[data.clients["000"].train].tolist()}
    seen = {tuple(row) for row in batches.x.reshape(-1, 64).tolist()}
    assert seen == train
    assert torch.equal(batches.active, torch.ones(1, 50))
