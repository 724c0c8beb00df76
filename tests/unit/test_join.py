"""Clients that come late, in the middle of a run or after training."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bouquet.core.errors import BadInput
from bouquet.problem import problem
from bouquet.settings import parse
from bouquet.strategies import SCHEMES
from tests.conftest import WORKING, Quadratics, Run
from tests.unit.algebra import EXACT, clients, descended

Start = Callable[..., Run]
OWN = {"plsgd": {"alpha": 0.4}}


def test_newcomers_take_no_part_before_their_round(start: Start, quadratics: Quadratics) -> None:
    run = start(
        scheme="fedavg", rounds=4, local_steps=2, lr=0.3, join={"clients": 1, "round": 3},
        eval_every=1, **quadratics.keys,
    )  # fmt: skip
    assert [event["clients"] for event in run.events] == [["000", "001"]] * 2 + [
        ["000", "001", "002"]
    ] * 2
    w = quadratics.init
    for number in range(1, 5):
        there = clients(quadratics)[: 2 if number < 3 else 3]
        w = np.mean([descended(w, a, c, 0.3, 2) for a, c in there], axis=0)
    np.testing.assert_allclose(run.shared(), w, atol=EXACT, rtol=0)
    assert [row["joined"] for row in run.clients] == ["0", "0", "3"]
    assert run.summary["newcomers"]["clients"] == ["002"]
    assert "newcomers" not in run.events[1]
    assert "personal_loss" in run.events[2]["newcomers"]


def test_after_training_a_newcomer_of_apfl_runs_equation_17(
    start: Start, quadratics: Quadratics
) -> None:
    """v ← v − ηα∇f(αv + (1 − α)w) from v = w with w and α fixed: v̄ = c + (I − ηα²A)^n (w − c)."""
    run = start(
        scheme="apfl", rounds=3, local_steps=2, lr=0.3, apfl={"alpha": 0.4},
        join={"clients": 1, "rounds": 4}, **quadratics.keys,
    )  # fmt: skip
    trained = start(
        scheme="apfl", rounds=3, local_steps=2, lr=0.3, apfl={"alpha": 0.4},
        join={"clients": 1, "rounds": 0}, **quadratics.keys,
    )  # fmt: skip
    assert run.sha == trained.sha  # the server is frozen
    a, c = clients(quadratics)[2]
    w = run.shared()
    expected = descended(w, a, c, 0.3 * 0.4**2, 4 * 2)
    np.testing.assert_allclose(run.predictor("002"), expected, atol=EXACT, rtol=0)
    losses = [entry["personal_loss"] for entry in run.summary["newcomers"]["adaptation"]]
    for rounds, loss in enumerate(losses):
        gap = descended(w, a, c, 0.3 * 0.4**2, rounds * 2) - c
        assert loss == pytest.approx(0.5 * gap @ a @ gap, abs=EXACT)


def test_as_in_the_papers_figure_a_newcomer_of_apfl_steps_with_both_models(
    start: Start, quadratics: Quadratics
) -> None:
    """w ← w − η∇f(w) and v ← v − ηα∇f(αv + (1 − α)w), both from the shared model."""
    run = start(
        scheme="apfl", rounds=3, local_steps=2, lr=0.3, join={"clients": 1, "rounds": 4},
        apfl={"alpha": 0.4, "adaptive": False, "predict-steps": 2}, **quadratics.keys,
    )  # fmt: skip
    a, c = clients(quadratics)[2]
    w = v = run.shared()
    for _ in range(4 * 2):
        slope = a @ (0.4 * v + 0.6 * w - c)
        w, v = w - 0.3 * a @ (w - c), v - 0.3 * 0.4 * slope
    np.testing.assert_allclose(run.predictor("002"), 0.4 * v + 0.6 * w, atol=EXACT, rtol=0)


@pytest.mark.parametrize("scheme", ["fedsim", "fedalt"])
def test_after_training_a_newcomer_tunes_the_personal_part_alone(start: Start, scheme: str) -> None:
    run = start(
        scheme=scheme, rounds=1, join={"clients": 1, "rounds": 2}, save_predictors=True,
        data={"clients": 3}, model={"hidden": 8},
    )  # fmt: skip
    for name in ("hidden1.weight", "hidden2.bias"):
        np.testing.assert_array_equal(run.predictor("002", name), run.shared(name))
    fresh = problem(parse({"data.clients": 3, "model.hidden": 8})).task.initial
    assert (run.predictor("002", "output.weight") != fresh["output.weight"].numpy()).any()


@pytest.mark.parametrize(("scheme", "keys", "pace"), [("fedavg", {}, 1.0), ("plsgd", OWN, 0.4)])
def test_after_training_a_newcomer_tunes_at_its_schemes_pace(
    start: Start, quadratics: Quadratics, scheme: str, keys: dict[str, Any], pace: float
) -> None:
    """FedAvg's moves the shared model by steps η, that of plsgd θ alone, from 0 by steps αη."""
    run = start(
        scheme=scheme, rounds=3, local_steps=2, lr=0.3, join={"clients": 1, "rounds": 4},
        **keys, **quadratics.keys,
    )  # fmt: skip
    a, c = clients(quadratics)[2]
    expected = descended(run.shared(), a, c, pace * 0.3, 8)
    np.testing.assert_allclose(run.predictor("002"), expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize("scheme", [one for one in WORKING if not SCHEMES[one].pooled])
def test_newcomers_of_every_scheme_adapt_to_their_data(start: Start, scheme: str) -> None:
    """No step leaves them with what they are given; many leave them with a lower loss."""
    keys: dict[str, Any] = {
        "scheme": scheme, "rounds": 3, "join": {"clients": 2, "rounds": 6},
        "data": {"clients": 6}, "model": {"name": "linear"}, "perfedavg": {"inner_lr": 0.1},
    }  # fmt: skip
    found = start(**keys).summary["newcomers"]
    assert found["joined"] == 4
    assert len(found["adaptation"]) == 7
    losses = [entry["personal_loss"] for entry in found["adaptation"]]
    if scheme != "ifca":  # whose newcomers choose among several models
        assert losses[0] == pytest.approx(found["shared"]["loss"]["mean"], rel=1e-5)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("scheme", WORKING)
def test_newcomers_of_every_scheme_join_in_the_middle(start: Start, scheme: str) -> None:
    if SCHEMES[scheme].pooled:
        with pytest.raises(BadInput, match=r"join\.clients must be 0 for centralized"):
            start(scheme=scheme, join={"clients": 1}, data={"clients": 4})
        return
    keys: dict[str, Any] = {
        "scheme": scheme, "join": {"clients": 2, "round": 2}, "local_steps": 2,
        "data": {"clients": 5}, "model": {"name": "linear"},
    }  # fmt: skip
    run = start(rounds=4, **keys)
    assert run.summary["clients"] == 5
    half = start(rounds=2, **keys)
    resumed = start(rounds=4, folder=half.path, resume=True, **keys)
    assert (resumed.sha, resumed.clients) == (run.sha, run.clients)


@pytest.mark.parametrize("scheme", ["fedu", "mocha"])
def test_resuming_after_the_end_lets_nobody_in_who_comes_after_training(
    start: Start, scheme: str
) -> None:
    keys: dict[str, Any] = {
        "scheme": scheme, "rounds": 2, "join": {"clients": 2}, "local_steps": 2,
        "data": {"clients": 5}, "model": {"name": "linear"},
    }  # fmt: skip
    run = start(**keys)
    sha, table = run.sha, run.clients
    again = start(folder=run.path, resume=True, **keys)
    assert (again.sha, again.clients) == (sha, table)


def test_there_must_be_someone_to_join(start: Start) -> None:
    with pytest.raises(BadInput, match=r"join\.clients must be less than 4"):
        start(scheme="fedavg", join={"clients": 4}, data={"clients": 4})
    with pytest.raises(BadInput, match=r"join\.round must be at most rounds, 3"):
        start(scheme="fedavg", rounds=3, join={"clients": 1, "round": 4}, data={"clients": 4})
