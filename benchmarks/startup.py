"""Seconds that commands take which only tell what there is: best of 5, each a new process."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE = ["-m", "bouquet"]
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
}
COMPLETION = {
    "_BOUQUET_COMPLETE": "complete_bash",
    "COMP_WORDS": "bouquet simulate -c apfl.",
    "COMP_CWORD": "3",
}
TIMES = 5


def seconds(words: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    print("| command | seconds |\n|---|---|")
    for name, words in COMMANDS.items():
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        environment |= COMPLETION if words == MODULE else {}
        best = min(seconds(words, environment) for _ in range(TIMES))
        print(f"| `{name}` | {best:.2f} |", flush=True)


if __name__ == "__main__":
    main()
