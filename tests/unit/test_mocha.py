"""MOCHA against a direct solve of the joint convex problem."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.optimize import minimize

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Federation, Member, Round
from bouquet.problem import problem
from bouquet.settings import parse
from bouquet.strategies import mocha
from tests.conftest import Array, Quadratics, Run, kebab
from tests.unit.algebra import drive, number, scalar_work

Start = Callable[..., Run]
LAMBDA, RIDGE = 0.3, 0.2


def solved(problem: Quadratics, omega: Array, strength: float = LAMBDA) -> Array:
    """argmin Σ f_k(w_k) + λ tr(WΩWᵀ) + r‖W‖²: A(w − c) + 2(λΩ + rI) w = 0, stacked."""
    size = len(problem.init)
    a = block_diag(*problem.a)
    count = len(problem.a)
    pull = np.kron(2 * (strength * omega + RIDGE * np.eye(count)), np.eye(size))
    return np.linalg.solve(a + pull, a @ np.concatenate(problem.c)).reshape(count, size)


def keys(problem: Quadratics, **changes: Any) -> dict[str, Any]:
    own = {"lambda": LAMBDA, "ridge": RIDGE} | changes
    return {"scheme": "mocha", "eval_every": 0, "mocha": own, **problem.keys}


def centred(count: int) -> Array:
    middle = np.eye(count) - np.ones((count, count)) / count
    return middle @ middle


def test_a_dual_step_is_as_derived_by_hand() -> None:
    """φ(w) = ½·2·(w − 1)² at w = 3, dual a = 1, pace 0.5: the slope is 4, and s = 1/(1 + 0.5·2).

    a = 1 + ½(4 − 1) = 2.5, Δv = 1.5 and the point goes to 3 − 0.5·1.5 = 2.25. That is the
    exact maximum: there the slope 2·(2.25 − 1) = 2.5 is the dual.
    """
    work = scalar_work(steps=1, lr=0.1, curvature=2.0, optimum=1.0)
    personal = mocha.Personal(torch.ones(1, 1, dtype=torch.float64), number(1.0))
    pace = torch.tensor(0.5, dtype=torch.float64)
    batch = work.batches[0]._replace(place=torch.tensor([0]))
    duals, change = mocha.ascended(work.task, number(3.0), personal.duals, pace, batch)
    assert duals.item() == pytest.approx(2.5, abs=1e-15)
    assert change["w"].item() == pytest.approx(1.5, abs=1e-15)


def test_the_coupling_of_two_tasks_is_as_derived_by_hand() -> None:
    """λ = r = ½: 2λΩ + 2rI = [[1.5, −0.5], [−0.5, 1.5]], so M = [[0.75, 0.25], [0.25, 0.75]].

    W = −MV for V = (2, 4) is −(2.5, 3.5). The pace is a whole row of M, 1, for what one task does
    moves the other's point too; the diagonal alone would be 0.75, and both would overshoot.
    """
    scheme = mocha.Mocha(strength=0.5, ridge=0.5)
    task = scalar_work(steps=1, lr=0.1, curvature=1.0, optimum=0.0).task
    two = Federation({"000": Member(1), "001": Member(1)})
    server = scheme.welcome(scheme.init_server(task), two)
    primals = mocha.Upload({"w": torch.tensor([[2.0], [4.0]], dtype=torch.float64)})
    server = scheme.aggregate(server, Round(primals, ("000", "001"), two))
    assert [server.models[k]["w"].item() for k in two.members] == pytest.approx([-2.5, -3.5])
    assert [server.paces[k].item() for k in two.members] == pytest.approx([1.0, 1.0])


def test_it_converges_to_the_direct_solve(start: Start, quadratics: Quadratics) -> None:
    run = start(rounds=100, local_steps=5, **keys(quadratics))
    for k, expected in enumerate(solved(quadratics, centred(3))):
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=1e-9, rtol=0)


def converged(problem: Quadratics, rounds: int, **changes: Any) -> Array:
    """The models a long run ends with, by the scheme's own methods."""
    sampled = changes.pop("sampled", 0)
    scheme = mocha.Mocha(**({"strength": LAMBDA, "ridge": RIDGE} | changes))
    _, models = drive(scheme, problem, rounds=rounds, steps=5, lr=0.1, sampled=sampled)
    return np.array(models)


def test_without_a_pull_the_tasks_are_alone(quadratics: Quadratics) -> None:
    models = converged(quadratics, 200, strength=0.0)
    np.testing.assert_allclose(models, solved(quadratics, np.zeros((3, 3)), 0.0), atol=1e-9)


@pytest.mark.parametrize("fault", [{"local_work": 0.0}, {"sampled": 1}])
def test_stragglers_and_dropouts_end_at_the_same_solution(
    quadratics: Quadratics, fault: dict[str, Any]
) -> None:
    """Clients that do a random part of their work, none of it at times; or sit rounds out."""
    models = converged(quadratics, 1000, **fault)
    np.testing.assert_allclose(models, solved(quadratics, centred(3)), atol=1e-9)


def test_stragglers_do_less_each_round(start: Start, quadratics: Quadratics) -> None:
    """After the same few rounds they are further away, or there were none."""
    goal = solved(quadratics, centred(3))
    gaps = []
    for share in (1.0, 0.0):
        run = start(rounds=6, local_steps=3, **keys(quadratics, local_work=share))
        models = np.array([run.predictor(f"{k:03}") for k in range(3)])
        gaps.append(np.abs(models - goal).max())
    assert gaps[0] < gaps[1] / 1.2


def test_learned_omega_solves_the_joint_problem(quadratics: Quadratics) -> None:
    """min over Ω⁻¹ of trace 1 makes the pull λ ‖W‖²_*, up to the floor that keeps Ω finite."""
    models = converged(quadratics, 700, omega="learned")

    def objective(flat: Array) -> float:
        w = flat.reshape(3, 3)
        losses = sum(
            0.5 * (w[k] - c) @ a @ (w[k] - c)
            for k, (a, c) in enumerate(zip(quadratics.a, quadratics.c, strict=True))
        )
        return float(losses + LAMBDA * np.linalg.norm(w, "nuc") ** 2 + RIDGE * (w**2).sum())

    best = minimize(objective, models.flatten(), method="Nelder-Mead",
                    options={"maxiter": 40000, "maxfev": 40000, "fatol": 1e-13})  # fmt: skip
    assert objective(models.flatten()) <= best.fun * (1 + 2e-3)
    np.testing.assert_allclose(models.flatten(), best.x, atol=2e-2)


def test_logistic_regression_converges_to_the_direct_solve(start: Start) -> None:
    """Softmax on digits: the joint problem minimized by L-BFGS is where MOCHA ends."""
    chosen: dict[str, Any] = {
        "scheme": "mocha", "rounds": 60, "local_steps": 15, "batch_size": 10, "eval_every": 0,
        "dtype": "float64", "save_predictors": True, "model": {"name": "linear"},
        "data": {"clients": 10, "partition": "dirichlet", "dirichlet_alpha": 1.0},
        "mocha": {"lambda": 0.1, "ridge": 0.1},
    }  # fmt: skip
    run = start(**chosen)
    loaded = problem(parse(kebab(chosen)))
    held = loaded.data.clients
    params = {
        name: torch.zeros(10, *value.shape, dtype=torch.float64, requires_grad=True)
        for name, value in loaded.task.initial.items()
    }
    optimizer = torch.optim.LBFGS(
        list(params.values()), max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def joint() -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for k, one in enumerate(sorted(held)):
            own = {name: value[k] for name, value in params.items()}
            losses, _ = loaded.task.losses(
                own, loaded.data.x[held[one].train], loaded.data.y[held[one].train]
            )
            total = total + losses.mean()
        for value in params.values():
            total = total + 0.1 * (value - value.mean(dim=0)).square().sum()
            total = total + 0.1 * value.square().sum()
        total.backward()
        return total

    optimizer.step(joint)
    for k in range(10):
        found = run.predictor(f"{k:03}", "output.weight")
        expected = params["output.weight"][k].detach().numpy()
        np.testing.assert_allclose(found, expected, atol=2e-4, rtol=0)


def test_a_coupling_that_cannot_be_inverted_is_refused(start: Start) -> None:
    with pytest.raises(BadInput, match=r"mocha\.ridge must be at least 1e-12"):
        start(scheme="mocha", data={"clients": 4}, model={"name": "linear"}, mocha={"ridge": 1e-20})


def test_other_models_are_refused(start: Start) -> None:
    with pytest.raises(BadInput, match=r"model\.name must be 'linear'.*not 'mlp'"):
        start(scheme="mocha", rounds=1, data={"clients": 4})
