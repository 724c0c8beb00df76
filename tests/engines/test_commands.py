"""Whole commands, as a user runs them, and what happens when they are killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bouquet.settings import Settings, all_keys, parse
from tests.conftest import Run, kebab

ROOT = Path(__file__).parent.parent.parent
PROBLEM = {"nodes": 2, "local_steps": 2, "data": {"name": "synthetic", "clients": 4}}
KEYS = [word for key, value in kebab(PROBLEM).items() for word in ("-c", f"{key}={value}")]
WHOLE = parse(kebab(PROBLEM | {"rounds": 60}))
Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start a bouquet command in a session of its own; what is left of it is ended."""
    started = []

    def popen(*words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "bouquet", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def wait_for_round(folder: Path, round_: int, process: "subprocess.Popen[str]") -> None:
    events = folder / "events.jsonl"
    deadline = time.monotonic() + 120
    while not events.exists() or len(events.read_text().splitlines()) < round_:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_run_resumes_to_the_same_end(
    launch: Launch, finished: Callable[[Settings], Run], tmp_path: Path
) -> None:
    whole, killed = finished(WHOLE), tmp_path / "killed"
    process = launch("simulate", *KEYS, "-c", "rounds=60", "--out", str(killed))
    wait_for_round(killed, 3, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len((killed / "events.jsonl").read_text().splitlines()) < 60
    finish(launch("simulate", "--resume", str(killed)))
    assert_same_rounds(Run(killed), whole)


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_an_interrupted_run_stops_all_it_started_and_can_be_resumed(
    launch: Launch, finished: Callable[[Settings], Run], tmp_path: Path, engine: str
) -> None:
    whole, folder = finished(WHOLE), tmp_path / "run"
    words = ("simulate", *KEYS, "-c", "rounds=60", "--out", str(folder), "--engine", engine)
    process = launch(*words)
    wait_for_round(folder, 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    ours = "" if engine == "inline" else f" --engine {engine}"
    assert err.endswith(f": bouquet simulate{ours} --resume {folder}\n")
    assert "Traceback" not in err
    assert_none_left(str(process.pid))
    finish(launch("simulate", "--resume", str(folder), "--engine", engine))
    assert_same_rounds(Run(folder), whole)


PEEKING = """
from torch import nn

class Net(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(*shape, classes)

    def forward(self, x):
        said = super().forward(x)
        return said if said.detach().sum() > 0 else 1.0 * said
"""


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_a_warning_is_seen_wherever_the_clients_train(
    launch: Launch, tmp_path: Path, engine: str
) -> None:
    (tmp_path / "net.py").write_text(PEEKING)
    words = ("simulate", *KEYS, "-c", "rounds=2", "-c", f"model.name={tmp_path}/net.py:Net")
    process = launch(*words, "--out", str(tmp_path / "run"), "--engine", engine)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Clients work one by one, which is slow: Net cannot be batched" in err


def assert_same_rounds(one: Run, other: Run) -> None:
    assert one.sha == other.sha
    assert one.clients == other.clients
    assert [event["round"] for event in one.events] == list(range(1, 61))


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path, str], str]]:
    """``flwr run`` in a folder, with a run config: what it prints; it starts one SuperLink."""
    home = tmp_path_factory.mktemp("home") / "flower"
    environment = flower_environment(home) | {"PYTHONPATH": str(ROOT)}

    def run(where: Path, config: str) -> str:
        done = subprocess.run(
            ["flwr", "run", ".", "--stream", "--run-config", config],
            cwd=where,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        return done.stdout + done.stderr

    yield run
    end_processes(str(home))  # the SuperLink that `flwr run` leaves running


def test_flower_runs_the_app_with_its_own_command(
    flower: Callable[[Path, str], str], start: Callable[..., Run], tmp_path: Path
) -> None:
    """``flwr run .`` ends with the bits of ``bouquet simulate``."""
    ours, theirs = start(rounds=2, nodes=2), tmp_path / "theirs"
    streamed = flower(ROOT, f'rounds=2 out="{theirs}"')
    assert (theirs / "summary.json").exists(), streamed
    assert f"The run's folder is {theirs}" in streamed
    assert re.search(r"apfl round 2/2 .* personal accuracy 0\.\d+\n", streamed)
    assert Run(theirs).sha == ours.sha


def test_the_example_runs_with_flowers_own_command(flower: Callable[[Path, str], str]) -> None:
    """Personal models are right where one model for all cannot be: no client has all digits."""
    said = flower(ROOT / "examples" / "flower_app", "num-server-rounds=3")
    found = dict(re.findall(r"(shared|personal) accuracy (\d\.\d+)", said))
    assert float(found["personal"]) > float(found["shared"]), said


def flower_environment(home: Path) -> dict[str, str]:
    """What keeps `flwr run` to itself: a home, and ports for the SuperLink it starts."""
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n'
    )
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def test_flower_knows_every_key_and_its_default() -> None:
    """``flwr run`` can only override what pyproject.toml declares."""
    import tomllib

    from bouquet.core.config import flatten

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = flatten(project["tool"]["flwr"]["app"]["config"])
    assert declared == {key.name: key.default for key in all_keys()}


def test_a_thousand_clients_on_two_nodes_take_two_messages_a_round(
    start: Callable[..., Run],
) -> None:
    """Two models go down and two come up, with a thousand clients as with ten."""
    sizes = {}
    for clients in (10, 1000):
        data = {"name": "synthetic", "clients": clients, "examples": 8}
        run = start(scheme="fedavg", nodes=2, rounds=1, local_steps=1, eval_every=0, data=data)
        sizes[clients] = run.events[0]
    model = (60 + 1) * 10 * 4
    names_and_scores = 1000 * 200  # ids, weights and scores of a thousand clients
    assert sizes[1000]["bytes_down"] < sizes[10]["bytes_down"] + 2 * model + names_and_scores
    assert len(sizes[1000]["clients"]) == 1000


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def processes(word: str) -> list[int]:
    """Live processes whose command line or parentage mentions a word."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if word in line and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def end_processes(word: str) -> None:
    for pid in processes(word):
        os.kill(pid, signal.SIGKILL)


def assert_none_left(session: str) -> None:
    """No process of a session is left after a moment."""
    deadline = time.monotonic() + 20
    while left := in_session(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def in_session(session: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if fields[3] == session and fields[0] != "Z":
            found.append(name)
    return found
