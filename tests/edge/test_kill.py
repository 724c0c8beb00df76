"""kill -9 at a random moment of a run: it goes on or resumes, and no state is lost or doubled."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bouquet.deploy.processes import end
from tests.conftest import Run
from tests.edge.conftest import Fleet, Going, states

pytestmark = pytest.mark.edge
NODES = 2
KEYS = {"scheme": "apfl", "rounds": 5, "eval_every": 0, "round_timeout": 150.0}


@pytest.fixture
def moment() -> float:
    """Seconds after the first round; a round takes one or two."""
    found = random.SystemRandom().uniform(0.0, 2.0)
    print(f"killed after {found} s")  # shown when a test fails
    return found


@pytest.fixture
def undisturbed(inline: Callable[..., Run]) -> Run:
    return inline(**KEYS)


def processes(home: Path) -> Iterator[tuple[int, str]]:
    """Number and command of what runs with a home, the newest last."""
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            if f"FLWR_HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue


def kill_app(home: Path, which: Callable[[int, str], bool]) -> None:
    """Kill the newest process that fits, as soon as there is one."""
    deadline = time.monotonic() + 60
    while not (found := [number for number, words in processes(home) if which(number, words)]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(found[-1], signal.SIGKILL)


def is_client_app(number: int, words: str) -> bool:
    """A fork of the process that has imported, which is one of the executor's, the SuperNode's."""
    line = []
    while number > 1:
        try:
            line.append(Path(f"/proc/{number}/cmdline").read_text())
            number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            return False
    return sum("flower-supernode" in one for one in line) == 4


def under_way(fleet: Fleet, moment: float, **keys: Any) -> Going:
    """A run in its second round, or a little further."""
    going = fleet.start(**KEYS | keys)
    going.wait_for_round(1)
    time.sleep(moment)
    return going


def kill_link(fleet: Fleet, events: Path, moment: float) -> None:
    """Kill the SuperLink and all it started, a moment after a run's first round."""
    deadline = time.monotonic() + 90
    while not (events.exists() and events.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(moment)
    end(fleet.deployment.processes["superlink"], signal.SIGKILL)


def assert_alike(fleet: Fleet, run: Run, undisturbed: Run) -> None:
    """To the last bit, on the devices too."""
    assert run.sha == undisturbed.sha
    assert fleet.states(run) == states(undisturbed.path / "state")


def test_a_killed_client_app_is_asked_again(fleet: Fleet, undisturbed: Run, moment: float) -> None:
    going = under_way(fleet, moment)
    kill_app(fleet.deployment.private / "node0", is_client_app)
    run = going.finish()
    assert_alike(fleet, run, undisturbed)


def test_a_run_whose_server_app_was_killed_resumes(
    fleet: Fleet, undisturbed: Run, moment: float
) -> None:
    going = under_way(fleet, moment)
    home = fleet.deployment.private / "superlink"
    kill_app(home, lambda number, words: "flwr-serverapp" in words)
    going.resume()
    run = going.finish()
    assert [event["round"] for event in run.events] == [1, 2, 3, 4, 5]
    assert_alike(fleet, run, undisturbed)


def test_a_run_whose_superlink_was_killed_resumes_with_its_database(
    fleet: Fleet, undisturbed: Run, moment: float
) -> None:
    """By itself; and the nodes are not touched: they find the SuperLink again by themselves."""
    events = fleet.folder / f"run{fleet.count + 1}" / "events.jsonl"
    killer = threading.Thread(target=kill_link, args=(fleet, events, moment))
    killer.start()
    run = fleet.supervise(**KEYS)
    killer.join()
    assert [event["round"] for event in run.events] == [1, 2, 3, 4, 5]
    assert_alike(fleet, run, undisturbed)


def test_a_killed_node_takes_part_again_with_its_state(
    fleet: Fleet, inline: Callable[..., Run], moment: float
) -> None:
    """A node is killed with all it runs, and restarted with its key.

    A message it had not fetched waits for it, and one it had is sent again if it is back when
    the SuperLink finds out. If it is not, it misses rounds, which no protocol can undo.
    """
    keys = KEYS | {"rounds": 7}
    going = under_way(fleet, moment)
    fleet.deployment.kill("node1")
    fleet.deployment.admit(fleet.hosts[1:])
    going.finish()
    going.resume(rounds=7)  # others may have been through before it was back
    run = going.finish()
    # Half a reply is a case of its own: Flower's server waits for the rest of it for minutes.
    there = [event["clients"] for event in run.events if event["clients"]]
    assert len(there) >= 6
    assert all({"000", "002"} <= set(clients) for clients in there)
    assert fleet.states(run)["001.safetensors"][0] == 7
    missed = [event["round"] for event in run.events if "001" not in event["clients"]]
    assert 1 not in missed
    assert not {6, 7} & {*missed}
    failures = [
        (event["round"], one["client"]) for event in run.events for one in event["failures"]
    ]
    assert {*failures} == {(round_, "001") for round_ in missed}
    assert run.summary["failures"] == len(failures)
    if not missed:
        assert_alike(fleet, run, inline(**keys))
