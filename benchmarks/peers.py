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
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
PFL = ("pfl[pytorch]==0.6.0", "torch==2.13.0")
PATIENCE = 3600.0  # seconds for one run, or one installation


class LeftOut(Exception):
    """Why there are no numbers of a simulator: what it could not do, and what was said then."""


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
    # With its defaults and with one thread: which is faster depends on the model and the machine.
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
        return statistics.median(self.seconds) / statistics.mean(
            map(statistics.median, self.beside)
        )


@dataclass
class Report:
    """All there is to tell so far."""

    machine: dict[str, Any]
    rounds: int
    repeat: int
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)


def install(peer: Peer, folder: Path) -> Path:
    """The Python to run a peer with, whose environment is made unless it is there already."""
    if not peer.requirements:
        return Path(sys.executable)
    home = folder / peer.adapter.removesuffix(".py")
    python, receipt = home / "bin" / "python", home / "installed.txt"
    wanted = "\n".join((platform.python_version(), *peer.requirements))
    if not (receipt.exists() and receipt.read_text("utf-8") == wanted):
        print(f"installing {peer.requirements[0]} into {home}", file=sys.stderr)
        told("be installed", [sys.executable, "-m", "venv", "--clear", str(home)])
        told("be installed", [str(python), "-m", "pip", "install", "-q", *peer.requirements])
        receipt.write_text(wanted, "utf-8")
    return python


def told(aim: str, command: Sequence[str], **variables: str) -> str:
    """What a command prints."""
    variables = os.environ | QUIET | variables
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=variables, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise LeftOut(f"could not {aim} in {PATIENCE / 60:.0f} minutes") from None
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in said if line.startswith("ERROR: ")]
        raise LeftOut(f"could not {aim}: {(errors or said)[-1].removeprefix('ERROR: ')}")
    return done.stdout


def run(name: str, workload: str, rounds: int, folder: Path) -> dict[str, Any]:
    """A simulator's, or the plain loop's, versions and seconds of every round after warm-up."""
    peer = PEERS.get(name, Peer("plain loop"))
    if peer.adapter:
        script, path = HERE / "peers" / peer.adapter, str(HERE)
        words = [workload, str(speed.WARM_UP + rounds)]
    else:
        script, path = Path(__file__), os.pathsep.join(map(str, (HERE, HERE.parent)))
        words = ["--child", name, workload, str(rounds)]
    command = [str(install(peer, folder)), str(script), *words]
    output = told("run", command, PYTHONPATH=path, **peer.environment)
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer | {"seconds": answer["seconds"][speed.WARM_UP :]}


def child(name: str, workload: str, rounds: int) -> None:
    """Tell what :func:`run` asks for of the plain loop, or of one of Bouquet's engines."""
    speed.ROUNDS = rounds
    if name == "plain":
        seconds = speed.plain_loop(workload, "fedavg", speed.CLIENTS)
    else:
        seconds = speed.bouquet(workload, "fedavg", name, speed.CLIENTS)
    versions = {package: version(package) for package in ("bouquet", "flwr", "ray", "torch")}
    print(json.dumps({"seconds": seconds, "versions": versions}))


def compete(report: Report, workload: str, names: Sequence[str], folder: Path) -> None:
    """Run every simulator once on a workload, a plain loop before the first and after each."""
    before = run("plain", workload, report.rounds, folder)["seconds"]
    for name in names:
        load = os.getloadavg()[0]
        try:
            answer = run(name, workload, report.rounds, folder)
        except LeftOut as why:
            report.left_out[name, workload] = str(why)
            continue
        after = run("plain", workload, report.rounds, folder)["seconds"]
        report.versions[name] = answer["versions"]
        one = Measured(workload, name, answer["seconds"], (before, after), load)
        report.measured.append(one)
        print(f"{workload} {name}: {one.ratio:.2f}", file=sys.stderr)
        before = after


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        models = []
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def cell(ratios: Sequence[float]) -> str:
    """The median repetition, and the least and the largest."""
    if not ratios:
        return "–"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def markdown(report: Report) -> str:
    """The table, and what one must know to read it."""
    workloads = list(dict.fromkeys(one.workload for one in report.measured))
    rows = [["", *workloads], ["---"] * (1 + len(workloads)), ["plain loop, one thread"]]
    for workload in workloads:
        loops = [one.beside for one in report.measured if one.workload == workload]
        plain = statistics.median(second for pair in loops for loop in pair for second in loop)
        rows[-1].append(f"{plain:.3f} s = 1")
    for name in dict.fromkeys(one.peer for one in report.measured):
        mine = [one for one in report.measured if one.peer == name]
        ratios = [[one.ratio for one in mine if one.workload == each] for each in workloads]
        rows.append([PEERS[name].title, *map(cell, ratios)])
    table = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*table, "", *notes(report)]) + "\n"


def notes(report: Report) -> list[str]:
    """How it was measured, on what, with which versions, and who is missing."""
    loads = [one.load for one in report.measured] or [0.0]
    about = report.machine
    lines = [
        f"Medians over {report.rounds} rounds of {report.repeat} runs each (least–largest), "
        f"{about['date']}: {about['processor']}, {about['cores']} cores, {about['memory']}, "
        f"{about['system']}, Python {about['python']}; "
        f"load average before a run {min(loads):.1f}–{max(loads):.1f}."
    ]
    lines += [
        f"{PEERS[name].title}: " + ", ".join(f"{key} {value}" for key, value in found.items()) + "."
        for name, found in report.versions.items()
    ]
    lines += [
        f"{PEERS[name].title} is left out{of and f' of {of}'}: it {why.rstrip('.')}."
        for (name, of), why in report.left_out.items()
    ]
    return ["- " + line for line in lines]


def as_json(report: Report) -> str:
    """Every number there is."""
    left_out = [
        {"peer": name, "workload": of, "why": why} for (name, of), why in report.left_out.items()
    ]
    measured = [asdict(one) | {"ratio": one.ratio} for one in report.measured]
    return json.dumps(vars(report) | {"left_out": left_out, "measured": measured}, indent=1) + "\n"


def installed(names: Sequence[str], folder: Path, report: Report) -> list[str]:
    """Those of the simulators that can be installed."""
    found = []
    for name in names:
        try:
            install(PEERS[name], folder)
            found.append(name)
        except LeftOut as why:
            report.left_out[name, ""] = str(why)
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    every, all_peers = list(speed.WORKLOADS), list(PEERS)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(every)} (all)")
    parser.add_argument("--peers", nargs="+", choices=all_peers, default=all_peers)
    parser.add_argument("--rounds", type=int, default=speed.ROUNDS, help="after warm-up")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each")
    parser.add_argument("--folder", type=Path, default=Path("~/.cache/bouquet-peers"))
    parser.add_argument("--out", type=Path, action="append", default=[], help=".json or .md")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.workloads = given.workloads or every
    for name in given.workloads:
        if name not in every:
            parser.error(f"there is no workload {name!r}, only {', '.join(every)}")
    for file in given.out:
        if file.suffix not in (".json", ".md"):
            parser.error(f"--out {str(file)!r} must end with .json or .md")
    if given.rounds < 1 or given.repeat < 1:
        parser.error("--rounds and --repeat must be at least 1")
    return given


def main() -> None:
    given = options()
    if given.child:
        name, workload, rounds = given.child
        return child(name, workload, int(rounds))
    folder = given.folder.expanduser().resolve()
    report = Report(machine(), given.rounds, given.repeat)
    names = installed(given.peers, folder, report)
    for _ in range(given.repeat):
        for workload in given.workloads:
            able = [name for name in names if (name, workload) not in report.left_out]
            try:
                compete(report, workload, able, folder)
            except LeftOut as why:
                raise SystemExit(f"The plain loop {why}") from None
            # After each, so that a run of hours that is stopped has not been for nothing.
            for file in given.out:
                file.write_text(
                    as_json(report) if file.suffix == ".json" else markdown(report), "utf-8"
                )
    print(markdown(report), end="")
    return None


if __name__ == "__main__":
    main()
