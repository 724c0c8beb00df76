"""AFL, and agnostic APFL, against algebra."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Model
from bouquet.core.trees import Tree
from bouquet.strategies import afl, fedsim
from bouquet.strategies.fedalt import FedAlt
from bouquet.strategies.fedsim import FedSim
from bouquet.strategies.plsgd import PLSGD
from tests.conftest import Array, Quadratics, Run, make_quadratics
from tests.unit.algebra import EXACT, clients, descended, drive, number, scalar_work
from tests.unit.test_partial import work_of

Start = Callable[..., Run]


def losses(problem: Quadratics, w: Array) -> Array:
    return np.array([0.5 * (w - c) @ a @ (w - c) for a, c in clients(problem)])


def projected(point: Array) -> Array:
    return afl.projected(torch.tensor(point)).numpy()


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_the_projection_is_the_nearest_point_of_the_simplex(values: list[float]) -> None:
    """p = Π(z) exactly when p is on the simplex and ⟨z − p, q − p⟩ ≤ 0 for every corner q."""
    point = np.array(values)
    nearest = projected(point)
    assert nearest.min() >= 0
    assert nearest.sum() == pytest.approx(1.0, abs=1e-12)
    for corner in np.eye(len(point)):
        assert (point - nearest) @ (corner - nearest) <= 1e-12


@given(st.lists(st.floats(-1e37, 1e37), min_size=1, max_size=6))
def test_no_loss_however_absurd_takes_the_weights_off_the_simplex(values: list[float]) -> None:
    nearest = projected(np.array(values))
    assert nearest.min() >= 0
    assert nearest.sum() == pytest.approx(1.0, abs=1e-9)


def test_a_projection_derived_by_hand() -> None:
    """(0.9, 0.4, −0.2): taking 0.15 off the first two leaves (0.75, 0.25) and clips the third."""
    np.testing.assert_allclose(projected(np.array([0.9, 0.4, -0.2])), [0.75, 0.25, 0.0], atol=1e-15)


def test_it_follows_the_recursion_of_its_paper(start: Start, quadratics: Quadratics) -> None:
    """A round averages with the λ it began with; λ then climbs the losses at the received w."""
    keys = {"afl": {"lambda_lr": 0.2}}
    run = start(scheme="afl", rounds=5, local_steps=3, lr=0.3, **keys, **quadratics.keys)
    w, mixture = quadratics.init, np.ones(3) / 3
    for _ in range(5):
        ends = np.array([descended(w, a, c, 0.3, 3) for a, c in clients(quadratics)])
        slope = losses(quadratics, w)
        w = mixture @ ends
        mixture = projected(mixture + 0.2 * slope)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)
    found = [run.server()[f"mixture/00{k}"] for k in range(3)]
    np.testing.assert_allclose(found, mixture, atol=EXACT, rtol=0)


def test_clients_that_sit_out_keep_their_weight_but_for_the_projection(
    start: Start, quadratics: Quadratics
) -> None:
    """The sampled one's slope counts N / K = 3 times, the others' not at all."""
    run = start(
        scheme="afl", rounds=1, clients_per_round=1, afl={"lambda_lr": 0.1}, **quadratics.keys
    )
    (sampled,) = (int(client) for client in run.events[0]["clients"])
    point = np.ones(3) / 3
    point[sampled] += 0.1 * 3 * losses(quadratics, quadratics.init)[sampled]
    found = [run.server()[f"mixture/00{k}"] for k in range(3)]
    np.testing.assert_allclose(found, projected(point), atol=EXACT, rtol=0)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 4),
    sampled=st.integers(0, 4),
    steps=st.integers(1, 4),
    rate=st.floats(0.0, 0.5),
)
def test_any_weights_average_whoever_was_sampled(
    start: Start, tmp_path: Path, seed: int, count: int, sampled: int, steps: int, rate: float
) -> None:
    """Any quadratics, sample, steps and λ: the mean of the closed forms, weighted by λ."""
    sampled = min(sampled, count)
    problem = make_quadratics(tmp_path / f"{seed}.json", clients=count, size=2, seed=seed)
    run = start(
        scheme="afl", rounds=3, local_steps=steps, clients_per_round=sampled, seed=seed, lr=0.3,
        afl={"lambda_lr": rate}, **problem.keys,
    )  # fmt: skip
    w, mixture = problem.init, np.ones(count) / count
    for event in run.events:
        chosen = [int(client) for client in event["clients"]]
        ends = np.array([descended(w, problem.a[k], problem.c[k], 0.3, steps) for k in chosen])
        shares = np.maximum(mixture[chosen], afl.LEAST)
        slope = np.zeros(count)
        slope[chosen] = count / len(chosen) * losses(problem, w)[chosen]
        w = shares @ ends / shares.sum()
        mixture = projected(mixture + rate * slope) if rate else mixture
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)


def test_with_frozen_uniform_weights_it_is_fedavg(start: Start) -> None:
    keys: dict[str, Any] = {"rounds": 3, "clients_per_round": 3, "data": {"clients": 5}}
    frozen = start(scheme="afl", afl={"lambda_lr": 0.0}, **keys)
    plain = start(scheme="fedavg", weights="uniform", **keys)
    assert frozen.summary["shared"]["accuracy"] == plain.summary["shared"]["accuracy"]
    assert frozen.summary["shared"]["loss"]["mean"] == pytest.approx(
        plain.summary["shared"]["loss"]["mean"], abs=1e-6
    )


def test_it_lowers_the_worst_loss(quadratics: Quadratics) -> None:
    """With one exact local step it goes to the minimax point, which a direct solve finds."""
    scheme = afl.AFL(lambda_lr=0.01).assembled()
    server, _ = drive(scheme, quadratics, rounds=3000, steps=1, lr=0.02)
    best = minimize(
        lambda z: z[3],
        [*quadratics.init, losses(quadratics, quadratics.init).max()],
        constraints={"type": "ineq", "fun": lambda z: z[3] - losses(quadratics, z[:3])},
    )
    assert losses(quadratics, server.w["w"].numpy()).max() == pytest.approx(best.x[3], rel=2e-2)


def test_agnostic_apfl_weighs_its_shared_half_as_afl_does(
    start: Start, quadratics: Quadratics
) -> None:
    """Its w is AFL's bit for bit; v and α are moved by nothing else than before."""
    keys: dict[str, Any] = {"rounds": 4, "afl": {"lambda_lr": 0.3}, **quadratics.keys}
    both = start(scheme="apfl", weights="agnostic", **keys)
    assert both.sha == start(scheme="afl", **keys).sha
    assert both.sha != start(scheme="apfl", rounds=4, **quadratics.keys).sha
    assert "v/w" in both.personal("000")


def test_agnostic_apfl_is_weighed_by_its_shared_half_whatever_it_predicts_with(
    start: Start, quadratics: Quadratics
) -> None:
    """Section 7: λ climbs f_i(w) at the received w, not at its average."""
    keys: dict[str, Any] = {"rounds": 4, "afl": {"lambda_lr": 0.3}, **quadratics.keys}
    last = start(scheme="apfl", weights="agnostic", **keys).server()
    averaged = start(scheme="apfl", weights="agnostic", apfl={"output": "average"}, **keys).server()
    for name in ("w/w", "mixture/000", "mixture/001", "mixture/002"):
        np.testing.assert_array_equal(averaged[name], last[name])


@pytest.mark.parametrize("stateless", [True, False])
@pytest.mark.parametrize("kind", [FedSim, FedAlt])
def test_agnostic_partial_personalization_is_weighed_with_the_clients_own_v(
    kind: type[FedSim], stateless: bool
) -> None:
    """λ climbs f_i(u, v_i), with the v_i the round starts from."""
    work = work_of(count=3)
    u, fresh = fedsim.split(work.task, work.task.initial)
    own = {name: -2 * value for name, value in fresh.items()}
    scheme = afl.Agnostic(kind(stateless=stateless), 0.1)
    upload, _ = scheme.local_update(work, Model(u), fedsim.Personal(own))
    whole = {**u, **(fresh if stateless else own)}
    expected = np.mean([work.task.loss(whole, batch).item() for batch in work.batches])
    assert upload.loss.item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("output", ["last", "mean-shared", "mean-own"])
def test_agnostic_plsgd_is_weighed_at_the_sum(output: str) -> None:
    """At w + θ = 3 − 1 the loss ½·2·(2 − 1)² is 1 under every option; at w alone it is 4."""
    work = scalar_work(steps=2, lr=0.1, curvature=2.0, optimum=1.0)
    inner = PLSGD(output=output).assembled()
    personal = inner.init_personal(work.task, 1)._replace(theta=number(-1.0))
    scheme = afl.Agnostic(inner, 0.1)
    averages: dict[str, list[Tree]] = {
        "last": [],
        "mean-shared": [number(7.0)],
        "mean-own": [{}],
    }
    payload = scheme.records.payload(number(3.0), *averages[output])
    upload, _ = scheme.local_update(work, payload, personal)
    assert upload.loss.item() == pytest.approx(1.0, abs=1e-15)


def test_only_what_averages_can_be_agnostic(start: Start) -> None:
    for scheme in ("local", "fedu", "afl"):
        with pytest.raises(BadInput, match=f"weights must not be 'agnostic' for {scheme}"):
            start(scheme=scheme, weights="agnostic")


def test_newcomers_get_a_due_share_of_the_weights(start: Start, quadratics: Quadratics) -> None:
    run = start(
        scheme="afl", rounds=2, join={"clients": 1, "round": 2}, afl={"lambda_lr": 0.0},
        **quadratics.keys,
    )  # fmt: skip
    found = [float(run.server()[f"mixture/00{k}"]) for k in range(3)]
    assert found == pytest.approx([1 / 3] * 3)
