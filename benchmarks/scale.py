"""What a client costs as the federation grows: CPU seconds a round, and the driver's memory.

Three questions, each a column of ratios to the line of 100 clients above it:

- idle: 100 clients take part in a round, of 100, 1,000 and 10,000 there are
- active: all clients take part, 100 and 1,000 of them
- huge: 100 clients take part, of 100,000

CPU time is of the driver and Ray's workers together, so a busy machine makes no difference; it is
the median over rounds without the first, in which steps are recorded, and without the last, which
evaluates everybody. Peak memory is of the driver, which on the inline engine also has the data.
Every line is measured in a process of its own and kept in a file: stopped and started again, the
command goes on where it was. With ``--profile`` one line's rounds are profiled instead.

    python benchmarks/scale.py                        # everything, as a Markdown table
    python benchmarks/scale.py idle huge --schemes fedavg --engines inline
    python benchmarks/scale.py --profile fedavg inline 10000 100
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

QUESTIONS = {
    "idle": [(100, 100), (1000, 100), (10000, 100)],
    "active": [(100, 100), (1000, 1000)],
    "huge": [(100, 100), (100000, 100)],
}
WARM_UP, ROUNDS = 3, 15
LEFT_OUT = 1  # the last round, which evaluates everybody


def keys(scheme: str, clients: int, active: int) -> dict[str, object]:
    """A run whose clients have so little to do that what else there is shows."""
    return {
        "scheme": scheme,
        "rounds": WARM_UP + ROUNDS + LEFT_OUT,
        "clients-per-round": active,
        "local-steps": 10,
        "batch-size": 5,
        "lr": 0.05,
        "eval-every": 0,
        "data.name": "synthetic",
        "data.clients": clients,
        "data.features": 20,
        "data.examples": 8,
        "model.name": "linear",
    }


def run(scheme: str, engine: str, clients: int, active: int, observe: Any) -> None:
    """One simulation, whose folder nobody keeps."""
    from bouquet.engines import simulate, with_nodes
    from bouquet.server_app.main import Job
    from bouquet.settings import parse
    from bouquet.storage.runfolder import RunFolder

    settings = with_nodes(parse(keys(scheme, clients, active)))
    with tempfile.TemporaryDirectory() as folder:
        simulate([Job(settings, RunFolder(Path(folder)), observe=observe)], engine)


def measured(scheme: str, engine: str, clients: int, active: int) -> dict[str, float]:
    """CPU milliseconds of an active client in a round, and what the driver needed."""
    spent, began = [], time.process_time()
    run(scheme, engine, clients, active, lambda event: spent.append(cpu_seconds()))
    rounds = [after - before for before, after in pairwise(spent)]
    return {
        "milliseconds": 1000 * statistics.median(rounds[WARM_UP - 1 : -LEFT_OUT]) / active,
        "driver_seconds": time.process_time() - began,
        "driver_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def cpu_seconds() -> float:
    """CPU time of this process and of Ray's workers below it, but not of Ray's own services."""
    import psutil

    total = time.process_time()
    for one in psutil.Process().children(recursive=True):
        try:
            if one.cmdline()[:1] and one.cmdline()[0].startswith("ray::"):
                total += sum(one.cpu_times()[:2])
        except psutil.Error:  # it ended meanwhile
            continue
    return total


def kept(results: Path, line: dict[str, Any]) -> dict[str, float]:
    """A line's numbers, measured unless an earlier call of this command did."""
    there = results.read_text().splitlines() if results.exists() else []
    for one in map(json.loads, there):
        if one["line"] == line:
            return dict(one["numbers"])
    command = [sys.executable, __file__, "--child", *map(str, line.values())]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if child.returncode:
        raise SystemExit(f"{line} failed")
    numbers: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    results.parent.mkdir(parents=True, exist_ok=True)
    with open(results, "a") as file:
        file.write(json.dumps({"line": line, "numbers": numbers}) + "\n")
    return numbers


def table(questions: list[str], schemes: list[str], engines: list[str], results: Path) -> None:
    """Measure what is not known yet and print, a line a run."""
    print(
        "| question | scheme | engine | clients | active | ms a client and round | ratio |", end=""
    )
    print(" driver, CPU s | driver, peak MB |\n|---|---|---|---|---|---|---|---|---|")
    for question in questions:
        for scheme in schemes:
            for engine in engines:
                first = 0.0
                for clients, active in QUESTIONS[question]:
                    line = {"scheme": scheme, "engine": engine, "clients": clients}
                    found = kept(results, line | {"active": active})
                    first = first or found["milliseconds"]
                    cells = [question, scheme, engine, f"{clients:,}", f"{active:,}"]
                    cells += [f"{found['milliseconds']:.3f}"]
                    cells += [f"{found['milliseconds'] / first:.2f}"]
                    cells += [f"{found['driver_seconds']:.1f}", f"{found['driver_megabytes']:.0f}"]
                    print("| " + " | ".join(cells) + " |", flush=True)


def profile(scheme: str, engine: str, clients: int, active: int) -> None:
    """Where the driver's time goes, over the whole run."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.runcall(run, scheme, engine, clients, active, lambda event: None)
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("questions", nargs="*", default=list(QUESTIONS))
    parser.add_argument("--schemes", nargs="+", default=["fedavg", "apfl"])
    parser.add_argument("--engines", nargs="+", default=["inline", "ray"])
    parser.add_argument("--results", type=Path, default=Path("runs") / "scale.jsonl")
    parser.add_argument("--profile", nargs=4, metavar=("SCHEME", "ENGINE", "CLIENTS", "ACTIVE"))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child or options.profile:
        scheme, engine, *counts = options.child or options.profile
        clients, active = map(int, counts)
        if options.profile:
            profile(scheme, engine, clients, active)
        else:
            print(json.dumps(measured(scheme, engine, clients, active)))
    else:
        table(options.questions, options.schemes, options.engines, options.results)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    main()
