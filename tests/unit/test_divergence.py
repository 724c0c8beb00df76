"""A run that diverges says where, names the keys, and keeps the last good checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bouquet.core.errors import RunFailed
from bouquet.server_app.assembly import for_nodes
from bouquet.settings import parse
from bouquet.storage.runfolder import RunFolder
from tests.conftest import WORKING, Quadratics, Run

Start = Callable[..., Run]


def steep(folder: Path, curvature: float) -> dict[str, object]:
    """Two clients, the second of which has a steep loss."""
    entries = [{"A": [[1.0]], "c": [0.0]}, {"A": [[curvature]], "c": [1.0]}]
    file = folder / "steep.json"
    file.write_text(json.dumps({"init": [3.0], "clients": entries}))
    return {"name": "quadratic", "path": str(file)}


@pytest.mark.parametrize("scheme", ["local", "fedavg", "apfl", "plsgd"])
def test_an_exploding_loss_stops_the_run(start: Start, tmp_path: Path, scheme: str) -> None:
    """Steps of 0.1 on curvature 30 double the distance to the optimum each time."""
    folder = tmp_path / "run"
    with pytest.raises(RunFailed, match=rf"{scheme} diverged in round \d+: .*client 001") as why:
        start(
            scheme=scheme, folder=folder, rounds=50, local_steps=3, lr=0.1, dtype="float64",
            data=steep(tmp_path, 30.0),
        )  # fmt: skip
    assert "Lower lr (0.1)" in str(why.value)
    kept = RunFolder(folder).read_checkpoint()
    good, server = kept.round, kept.server
    assert f"in round {good + 1}:" in str(why.value)
    assert f"checkpoint of round {good}" in str(why.value)
    assert all(bool(value.isfinite().all()) for value in server.values())


def test_a_loss_that_is_no_guess_any_more_stops_the_run(start: Start) -> None:
    """Ten classes: who guesses loses ln 10, and the first look is after the explosion."""
    with pytest.raises(RunFailed, match=r"fedavg diverged in round 2: the shared loss of client"):
        start(
            scheme="fedavg", rounds=4, eval_every=2, lr=1e5, data={"clients": 4},
            model={"name": "linear"},
        )  # fmt: skip


def test_training_that_gives_nan_stops_the_run(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunFailed, match="training of client 001 gave NaN or infinity"):
        start(
            scheme="fedavg", folder=folder, rounds=5, local_steps=200, lr=1.0, dtype="float64",
            data=steep(tmp_path, 1e6),
        )  # fmt: skip
    assert RunFolder(folder).read_checkpoint().round == 0


def test_a_run_may_go_on_without_those_that_diverge(start: Start, tmp_path: Path) -> None:
    run = start(
        scheme="fedavg", rounds=3, local_steps=200, lr=1.0, dtype="float64",
        on_divergence="drop", data=steep(tmp_path, 1e6),
    )  # fmt: skip
    assert [event["clients"] for event in run.events] == [["000"]] * 3
    assert run.shared() == pytest.approx(0.0, abs=1e-12)


def test_a_loss_that_only_starts_high_is_no_divergence(
    start: Start, quadratics: Quadratics
) -> None:
    problem = json.loads(quadratics.path.read_text())
    problem["init"] = [1e6, -1e6, 1e6]
    quadratics.path.write_text(json.dumps(problem))
    run = start(scheme="fedavg", rounds=10, lr=0.5, **quadratics.keys)
    assert np.abs(run.shared()).max() < 1e6


@pytest.mark.parametrize("scheme", [name for name in WORKING if name not in ("mocha", "fedrod")])
def test_too_large_a_step_is_told_by_every_scheme_that_takes_steps(
    start: Start, tmp_path: Path, scheme: str
) -> None:
    """MOCHA has no step to choose, its dual steps cannot overshoot; FedRoD wants classes."""
    everything = {"split": "none"} if scheme == "fedbabu" else {}  # and no head that rests
    with pytest.raises(RunFailed, match=rf"{scheme} diverged in round \d+: .*Lower lr \(10"):
        start(
            scheme=scheme, rounds=60, lr=10.0, dtype="float64", batch_size=0,
            data=steep(tmp_path, 30.0), personal=everything,
        )  # fmt: skip


def test_a_device_that_says_it_diverged_ends_no_run_unless_the_user_asks() -> None:
    for key, told in (("auto", "drop"), ("stop", "stop"), ("drop", "drop")):
        settings = parse({"scheme": "fedavg", "on-divergence": key})
        assert for_nodes(settings, "grpc").run.on_divergence == told
        assert for_nodes(settings, "inline").run.on_divergence == key
