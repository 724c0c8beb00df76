"""The dashboard beside a run: there while the run lasts, gone with it however it ends."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.engines.test_commands import KEYS, PROBLEM, Launch, launch, wait_for_round
from tests.serving import Visitor

__all__ = ["launch"]  # a fixture


def address(process: "subprocess.Popen[str]") -> Visitor:
    """Whom the command says to visit, on the first line people see."""
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("Watch at http://127.0.0.1:"), said
    return Visitor(int(said.strip().removesuffix("/").rpartition(":")[2]))


def serving(folder: Path) -> list[int]:
    """The processes that serve a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if "bouquet.watch.companion" in words and str(folder) in words:
            found.append(int(entry.name))
    return found


def assert_none_serves(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while serving(folder):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_is_served_while_it_lasts_and_ends_as_without(
    launch: Launch, start: Callable[..., Run], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = ("-c", "rounds=60", "--out", str(folder), "--dashboard", "--quiet")
    process = launch("simulate", *KEYS, *words)
    visitor = address(process)
    lines = visitor.get("/api/runs").json()  # before the run has a folder there is no run
    while not lines:
        assert process.poll() is None
        lines = visitor.get("/api/runs").json()
    assert lines[0]["name"] == "run"
    assert process.communicate(timeout=120)[0].strip() == str(folder)  # and nothing but the result
    assert process.returncode == 0
    assert serving(folder) == []
    with pytest.raises(OSError, match="refused"):
        visitor.get("/api/runs")
    assert Run(folder).sha == start(rounds=60, **PROBLEM).sha


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_page_goes_with_a_run_that_is_interrupted_or_killed(
    launch: Launch, tmp_path: Path, how: signal.Signals
) -> None:
    folder = tmp_path / "run"
    process = launch("simulate", *KEYS, "-c", "rounds=5000", "--out", str(folder), "--dashboard")
    visitor = address(process)
    wait_for_round(folder, 2, process)
    assert visitor.get("/").status == 200
    assert len(serving(folder)) == 1
    os.killpg(process.pid, how)  # as a terminal's Ctrl-C reaches all in the foreground
    _, err = process.communicate(timeout=60)
    assert_none_serves(folder)
    if how == signal.SIGINT:
        assert process.returncode == 1
        assert "--resume" in err.splitlines()[-1]
        assert "Traceback" not in err


def test_compared_runs_are_served_together(launch: Launch, tmp_path: Path) -> None:
    words = ("-c", "rounds=40", "--out", str(tmp_path / "both"), "--dashboard")
    process = launch("compare", "fedavg", "apfl", *KEYS, *words)
    visitor, names = address(process), set[str]()
    while names != {"fedavg", "apfl"}:
        assert process.poll() is None, names
        names = {line["name"] for line in visitor.get("/api/runs").json()}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert_none_serves(tmp_path / "both")


def test_a_run_that_is_refused_serves_nothing(launch: Launch, tmp_path: Path) -> None:
    process = launch("simulate", "-c", "lr=-1", "--out", str(tmp_path / "run"), "--dashboard")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Watch at" not in err
    assert list(tmp_path.iterdir()) == []
