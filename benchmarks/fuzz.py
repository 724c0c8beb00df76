"""Thousands of seeded pieces of nonsense, and what became of them.

    python benchmarks/fuzz.py [--cases N] [--seed S] [--kinds files,runs] [--results FILE]

Kinds are those of ``tests/fuzzing.py``. Every case is a line of FILE as soon as it is done, so
that a second start goes on where the first was stopped, and processes may share the work by kind.
The table of all of FILE's cases of the seed goes to ``benchmarks/fuzz.md``. The exit code is 1 if
there was a traceback.
"""

import argparse
import json
import logging
import sys
import tempfile
import traceback
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from tests.fuzzing import ACCEPTED, KINDS, REFUSED, attempt

FAULT = "traceback"
TABLE = Path(__file__).with_suffix(".md")


def main() -> int:
    """Do what is left to do, and write the table."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--cases", type=int, default=10_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--kinds", default=",".join(KINDS))
    words.add_argument("--results", type=Path, default=Path("runs/fuzz.jsonl"))
    told = words.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it tells of every reply left out
    results = told.results.absolute()  # some kinds go to a folder of their own
    results.parent.mkdir(parents=True, exist_ok=True)
    for kind in told.kinds.split(","):
        run(kind, told.cases, told.seed, results)
    outcomes = read(results, told.seed)
    TABLE.write_text(table(outcomes, told.seed), encoding="utf-8")
    return int(FAULT in outcomes.values())


def run(kind: str, cases: int, seed: int, results: Path) -> None:
    """Do the cases of a kind that are not done."""
    done = {number for found, number in read(results, seed) if found == kind}
    with tempfile.TemporaryDirectory() as place, KINDS[kind](Path(place)) as case:
        for number in [one for one in range(cases) if one not in done]:
            line: dict[str, str | int] = {"seed": seed, "kind": kind, "case": number}
            try:
                line["outcome"] = attempt(case, seed, kind, number)
            except Exception:  # what we are looking for
                line |= {"outcome": FAULT, "why": traceback.format_exc()}
                print(line["why"], file=sys.stderr, flush=True)
            with open(results, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def read(results: Path, seed: int) -> dict[tuple[str, int], str]:
    """What became of each case of a seed."""
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    found = [line for line in map(json.loads, lines) if line["seed"] == seed]
    return {(line["kind"], line["case"]): line["outcome"] for line in found}


def table(outcomes: dict[tuple[str, int], str], seed: int) -> str:
    """The cases by kind and outcome."""
    counts = {kind: Counter(o for (k, _), o in outcomes.items() if k == kind) for kind in KINDS}
    rows = [
        f"| {kind} | {count.total()} | {count[REFUSED]} | {count[ACCEPTED]} | {count[FAULT]} |"
        for kind, count in counts.items()
    ]
    return "\n".join(
        [
            "# Nonsense, and what became of it",
            "",
            f"`python benchmarks/fuzz.py --seed {seed}`, {datetime.now(UTC):%Y-%m-%d}. What the",
            "kinds are, and what must hold of a case that is accepted, is in `tests/fuzzing.py`.",
            "",
            "| kind | cases | refused with a sentence | accepted and harmless | tracebacks |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
