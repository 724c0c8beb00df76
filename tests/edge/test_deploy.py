"""``bouquet deploy`` as a user runs it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.engines.test_commands import KEYS, PROBLEM, ROOT

pytestmark = pytest.mark.edge


def launch(place: Path, *words: str) -> "subprocess.Popen[str]":
    """Start the command so that all it starts can be told by its temporary folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "bouquet", "deploy", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(place)},
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
    assert "--resume" in err.splitlines()[-1]
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
