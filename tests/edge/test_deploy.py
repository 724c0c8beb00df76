"""``bouquet deploy`` as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bouquet.client_app.predictor import read_predictor
from bouquet.core.trees import sha256
from bouquet.rebuild import predictor_of
from tests.conftest import Run
from tests.engines.test_commands import KEYS, PROBLEM, ROOT
from tests.engines.test_companion import address, assert_none_serves

pytestmark = pytest.mark.edge


def launch(place: Path, *words: str, code: Path = ROOT) -> "subprocess.Popen[str]":
    """Start the command so that all it starts can be told by its temporary folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "bouquet", "deploy", *words],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(code), "TMPDIR": str(place)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def started_by(place: Path) -> list[str]:
    """What still runs with its home below a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={place}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture
def watched(tmp_path: Path, installed: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A deployment without a checkout that is watched: its folder, and the nodes on the page."""
    place = tmp_path / "empty"
    place.mkdir()
    words = ("-c", "rounds=2", "-c", "eval-every=1", "--out", "run", "--dashboard", "--tensorboard")
    process = launch(place, *KEYS, *words, code=installed)
    try:
        assert process.stderr is not None
        assert "2 nodes are starting" in process.stderr.readline()
        visitor = address(process)
        nodes: list[dict[str, Any]] = []
        while not nodes:
            assert process.poll() is None
            time.sleep(0.5)
            answer = visitor.get("/api/run", {"name": "run"})
            nodes = answer.json()["nodes"] if answer.status == 200 else []
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert started_by(place) == []
    assert_none_serves(place / "run")
    return place / "run", nodes


def test_a_deployment_without_a_checkout_is_watched_and_its_models_exported(
    watched: tuple[Path, list[dict[str, Any]]], start: Callable[..., Run]
) -> None:
    folder, nodes = watched
    theirs = start(rounds=2, save_predictors=True, **PROBLEM).path / "predictors"
    for client in ("000", "001"):
        found = predictor_of(folder, client)
        expected = read_predictor(theirs / f"{client}.safetensors")
        assert sha256(found.weights) == sha256(expected.weights)
    assert [(one["node"], one["clients"], one["names"]) for one in nodes] == [
        ("0", 2, ["000", "002"]),
        ("1", 2, ["001", "003"]),
    ]
    assert all(one["last_seen"] >= 1 and one["time"] <= time.time() for one in nodes)
    # Nothing personal is in its history.
    for line in (folder / "history.jsonl").read_text().splitlines():
        assert not {"alpha", "personal_norm", "drift"} & json.loads(line).keys()
    written = EventAccumulator(str(folder / "tensorboard"))
    written.Reload()
    assert [one.step for one in written.Scalars("accuracy/personal")] == [1, 2]
    assert written.Tags()["histograms"] == []


def test_an_interrupted_deployment_stops_all_and_resumes_to_the_same_end(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    run, place = tmp_path / "run", tmp_path / "private"
    place.mkdir()
    process = launch(place, *KEYS, "-c", "rounds=3", "--out", str(run))
    try:
        events, deadline = run / "events.jsonl", time.monotonic() + 180
        while not (events.exists() and events.read_text()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert err.endswith(f": bouquet deploy --resume {run}\n")
    assert started_by(place) == []
    assert list(place.glob("bouquet-*")) == []  # keys are not left behind
    process = launch(place, "--resume", str(run))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "apfl" in out
    assert started_by(place) == []
    whole = start(rounds=3, **PROBLEM)
    assert Run(run).sha == whole.sha
    assert [event["round"] for event in Run(run).events] == [1, 2, 3]
    assert {path.name for path in (run / "logs").iterdir()} == {
        "node0.log",
        "node1.log",
        "superlink.log",
    }
    assert "PRIVATE KEY" not in "".join(log.read_text() for log in (run / "logs").iterdir())
