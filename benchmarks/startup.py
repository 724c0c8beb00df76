"""Seconds that commands take to start, or to run one round: best of 5, each a new process.

CPU seconds are of the command itself; the workers that Ray starts are not its children.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE = ["-m", "bouquet"]
ROUND = [*MODULE, "simulate", "-c", "rounds=1", "-c", "data.clients=4", "--engine"]
COMMANDS = {
    "import bouquet": ["-c", "import bouquet"],
    "bouquet --help": [*MODULE, "--help"],
    "bouquet schemes": [*MODULE, "schemes"],
    "bouquet schemes apfl": [*MODULE, "schemes", "apfl"],
    "bouquet keys": [*MODULE, "keys"],
    "bouquet models": [*MODULE, "models"],
    "bouquet data list": [*MODULE, "data", "list"],
    "bouquet node key --help": [*MODULE, "node", "key", "--help"],
    "completion of -c apfl.": MODULE,
    "bouquet simulate --engine inline": [*ROUND, "inline"],
    "bouquet simulate --engine ray": [*ROUND, "ray"],
}
COMPLETION = {
    "_BOUQUET_COMPLETE": "complete_bash",
    "COMP_WORDS": "bouquet simulate -c apfl.",
    "COMP_CWORD": "3",
}
TIMES = 5


def seconds(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command, in a folder that is gone afterwards."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *words]
        subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def main() -> None:
    print("| command | seconds | CPU seconds |\n|---|---|---|")
    for name, words in COMMANDS.items():
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        environment |= COMPLETION if words == MODULE else {}
        wall, cpu = map(min, zip(*(seconds(words, environment) for _ in range(TIMES)), strict=True))
        print(f"| `{name}` | {wall:.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
