"""Plant mistakes in the schemes, one at a time, and see which test catches each.

    python benchmarks/mutants.py [SCHEME]... [--jobs N] [--again] [--trust]

``mutants.toml`` lists the mistakes: a file, the text in it that is right (it must be there exactly
once), and the text that is wrong. Each is planted in a copy of the tree, in which the fast tests
about its scheme then run until one fails; the unchanged tree must pass them first. What was caught
is noted in ``runs/mutants.json`` at once and not tried again unless told; ``mutants.md`` is the
table of them all. Exits with 1 where a mistake survives or its text is gone.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "benchmarks" / "mutants.toml"
TABLE = LIST.with_suffix(".md")
NOTES = ROOT / "runs" / "mutants.json"
TREE = ("bouquet", "client_app", "models", "server_app", "strategies", "tests")
# What tests import of others', once for all mutants: it takes longer than most of the tests.
PRELOAD = [
    "torch", "torch._dynamo", "flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.superlink.grid",
    "hypothesis", "pytest", "safetensors.numpy", "scipy.optimize", "sklearn.datasets",
]  # fmt: skip
SECONDS = 300
SURVIVED = "survived"
GONE = "its text is not there exactly once"
BROKEN = "it cannot even be imported"
OPEN = (SURVIVED, GONE, BROKEN)


@dataclass(frozen=True)
class Mutant:
    """A mistake and the tests that should catch it; without a mistake, the tree as it is."""

    scheme: str
    tests: tuple[str, ...]
    about: str
    mistake: str = ""
    file: str = ""
    old: str = ""
    new: str = ""

    @property
    def id(self) -> str:
        """Changes with the mutant, not with the code around it."""
        text = "\0".join([self.scheme, self.file, self.old, self.new])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def listed(chosen: list[str]) -> list[Mutant]:
    """The mutants of the chosen schemes, or of all."""
    found = []
    for scheme, group in tomllib.loads(LIST.read_text("utf-8")).items():
        tests = tuple(f"tests/unit/test_{name}.py" for name in group["tests"])
        for one in group["mutant"]:
            file = one.get("file", f"strategies/{scheme.replace('-', '_')}.py")
            texts = one["mistake"], file, one["old"].strip("\n"), one["new"].strip("\n")
            found.append(Mutant(scheme, tests, group["about"], *texts))
    unknown = set(chosen) - {one.scheme for one in found}
    if unknown:
        sys.exit(f"{', '.join(sorted(unknown))}: not in {LIST.name}.")
    return [one for one in found if not chosen or one.scheme in chosen]


def caught_by(mutant: Mutant) -> str:
    """The first test that fails, or that the mutant survived. Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        for name in TREE:
            # Links stay links: the rooms of bouquet/ must be those the mistake is planted in.
            skipped = shutil.ignore_patterns("*.pyc")
            shutil.copytree(ROOT / name, Path(place, name), symlinks=True, ignore=skipped)
        shutil.copy(ROOT / "pyproject.toml", place)
        if mutant.mistake:
            path = Path(place, mutant.file)
            text = path.read_text("utf-8")
            if text.count(mutant.old) != 1:
                return GONE
            path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
        return first_failure(place, mutant)


def first_failure(place: str, mutant: Mutant) -> str:
    """Run the tests about a mutant's scheme in a tree, until one fails."""
    import hypothesis
    import pytest

    class Watch:
        failed = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            self.failed = self.failed or (report.nodeid if report.failed else "")

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            self.failed = BROKEN if report.failed else self.failed

    def too_long(*_: object) -> None:
        watch.failed = "no end in sight"
        raise TimeoutError  # within a test, which thereby fails

    watch = Watch()
    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of work, however busy the machine is
    os.chdir(place)
    sys.path.insert(0, place)
    sys.dont_write_bytecode = True
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    # A failure is enough; looking for the simplest one takes minutes.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=phases
    )
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-k", mutant.about]
    options += ["--hypothesis-profile", "mutants"]
    options += ["-W", "ignore:Module already imported"]  # they are, and need no rewriting
    code = pytest.main([*options, *mutant.tests], plugins=[watch])
    if code == pytest.ExitCode.OK:
        return SURVIVED
    return watch.failed.removeprefix("tests/unit/") or f"pytest ended with {code!r}"


def table(mutants: list[Mutant], notes: dict[str, str]) -> str:
    """The mutants and what caught them, in Markdown."""
    lines = [
        "# Mistakes planted in the schemes",
        "",
        f"{len(mutants)} mistakes people make, each planted on its own, and the first test that",
        "fails. Made by `benchmarks/mutants.py` from `benchmarks/mutants.toml`.",
        "",
        "| scheme | mistake | caught by |",
        "|---|---|---|",
    ]
    for one in mutants:
        test = notes.get(one.id, "not tried").split("[")[0].replace("::", " · ")
        lines.append(f"| {one.scheme} | {one.mistake} | {test} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant mistakes and see which test catches each.")
    parser.add_argument("schemes", nargs="*", help="some of those in mutants.toml; else all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants side by side")
    parser.add_argument("--again", action="store_true", help="also those that were caught before")
    parser.add_argument("--trust", action="store_true", help="that the unchanged tree passes")
    told = parser.parse_args()
    mutants = listed(told.schemes)
    notes: dict[str, str] = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    wanted = [one for one in mutants if told.again or notes.get(one.id, SURVIVED) in OPEN]
    sound = {one.scheme: Mutant(one.scheme, one.tests, one.about) for one in wanted}
    if told.trust:
        sound.clear()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    NOTES.parent.mkdir(exist_ok=True)
    with context.Pool(told.jobs, maxtasksperchild=1) as pool:
        for one, result in zip(sound.values(), pool.imap(caught_by, sound.values()), strict=True):
            if result != SURVIVED:
                print(f"{one.scheme}: its tests fail without any mistake: {result}")
                return 1
        for one, result in zip(wanted, pool.imap(caught_by, wanted), strict=True):
            notes[one.id] = result
            NOTES.write_text(json.dumps(notes, indent=1))
            print(f"{one.scheme}: {one.mistake}: {result}", flush=True)
    TABLE.write_text(table(listed([]), notes), "utf-8")
    open_ones = [one for one in mutants if notes.get(one.id) in OPEN]
    for one in open_ones:
        print(f"{notes[one.id].upper()} {one.scheme}: {one.mistake}")
    print(f"{len(mutants) - len(open_ones)} of {len(mutants)} caught.")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
