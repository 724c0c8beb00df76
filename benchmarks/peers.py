"""FedAvg beside other simulators, as ratios to the plain PyTorch loop of ``speed.py``.

The workloads are those of ``speed.py``. Every simulator runs them in a process of its own, one
after the other with a plain loop between any two, and its ratio is to the mean of the loops
before and after it: machines are not equally fast all day. A repetition's ratio is of medians over
rounds, the warm-up left out; the table has the median repetition, and the least and the largest.

Each peer is installed once, at pinned versions, into an environment of its own under ``--folder``,
and used as its documentation shows (``benchmarks/peers``). Its adapter counts the gradient steps
and the examples in each, and refuses to tell a time if these are not the workload's or the loss
does not fall. A peer that cannot be installed or run is left out, with a sentence.

    python benchmarks/peers.py                                 # everything, as a Markdown table
    python benchmarks/peers.py W2 --peers fedjax inline --out w2.json --out w2.md
    python benchmarks/peers.py --rounds 2 --repeat 1           # does it all run?
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import speed

HERE = Path(__file__).resolve().parent
PFL = ("pfl[pytorch]==0.6.0", "torch==2.13.0")


class LeftOut(Exception):
    """Why there are no numbers of a simulator: one sentence without its subject."""


@dataclass(frozen=True)
class Peer:
    """A simulator: what the table calls it, its adapter, and what its environment has.

    Without an adapter it is one of Bouquet's engines; without requirements it runs in this
    environment.
    """

    title: str
    adapter: str = ""
    requirements: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


PEERS = {
    "inline": Peer("Bouquet, inline"),
    "ray": Peer("Bouquet, ray"),
    "fedjax": Peer(
        "FedJAX (jit)",
        "fedjax_fedavg.py",
        (
            *("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12"),
            *("chex==0.1.86", "optax==0.1.9", "numpy<2"),
        ),
    ),
    "pfl": Peer("pfl-research, a process, PyTorch's threads", "pfl_fedavg.py", PFL),
    "pfl-1": Peer(
        "pfl-research, a process, one thread", "pfl_fedavg.py", PFL, {"OMP_NUM_THREADS": "1"}
    ),
    "flower": Peer("Flower on Ray, a virtual client a node", "flower_fedavg.py"),
}


@dataclass(frozen=True)
class Measured:
    """One run of a simulator between two plain loops: each one's seconds of every round."""

    workload: str
    peer: str
    seconds: list[float]
    beside: tuple[list[float], list[float]]
    load: float

    @property
    def ratio(self) -> float:
        """Its median round, the mean of the plain loops' being 1."""
        return statistics.median(self.seconds) / statistics.mean(map(statistics.median, self.beside))


@dataclass
class Report:
    """All there is to tell so far."""

    machine: dict[str, Any]
    rounds: int
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)


def environment(peer: Peer, folder: Path) -> Path:
    """The Python to run a peer with, whose environment is made if it is not there yet."""
    if not peer.requirements:
        return Path(sys.executable)
    home = folder / peer.adapter.removesuffix(".py")
    python, ready = home / "bin" / "python", home / "installed.txt"
    wanted = "\n".join((platform.python_version(), *peer.requirements))
    if not (ready.exists() and ready.read_text("utf-8") == wanted):
        print(f"installing {peer.requirements[0]} ...", file=sys.stderr)
        told([sys.executable, "-m", "venv", "--clear", str(home)])
        told([str(python), "-m", "pip", "install", "--quiet", *peer.requirements])
        ready.write_text(wanted, "utf-8")
    return python


def told(command: Sequence[str], **variables: str) -> str:
    """What a command prints; its last words are why a peer is left out if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    if done.returncode:
        errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise LeftOut(f"`{Path(command[-1]).name}` failed: {errors[-1]}")
    return done.stdout


def run(name: str, workload: str, rounds: int, folder: Path) -> dict[str, Any]:
    """One simulator's (or the plain loop's) seconds of every round, and its versions."""
    everything = str(speed.WARM_UP + rounds)
    peer = PEERS.get(name)
    if peer is None or not peer.adapter:
        command = [sys.executable, __file__, "--child", name, workload, str(rounds)]
    else:
        adapter = str(HERE / "peers" / peer.adapter)
        command = [str(environment(peer, folder)), adapter, workload, everything]
    output = told(command, PYTHONPATH=str(HERE), **(peer.environment if peer else {}))
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer | {"seconds": answer["seconds"][speed.WARM_UP :]}
