"""An experiment's runs: made, or gone on with, in one folder."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bouquet import jobs
from bouquet.imports import imported
from bouquet.jobs import Plan
from bouquet.reproduction.outcome import NOT, REPRODUCED, Number, Outcome, outcome
from bouquet.reproduction.recipe import Entry, Recipe, folder
from bouquet.storage.files import write_atomically
from bouquet.storage.runs import read_summary

# What is known by algebra is known to so much.
EXACT = 1e-9


def seeds_of(recipe: Recipe, entry: Entry, out: Path) -> list[Path]:
    """The folders of an entry's runs."""
    return [out / f"{entry.name}-seed{seed}" for seed in recipe.seeds]


def runs_of(recipe: Recipe, out: Path) -> dict[Path, dict[str, Any]]:
    """Each run's folder and keys, all entries of a seed before the next seed."""
    return {
        out / f"{entry.name}-seed{seed}": recipe.keys_of(entry, seed)
        for seed in recipe.seeds
        for entry in recipe.entries
    }


def plans(recipe: Recipe, out: Path) -> list[Plan]:
    """The runs that are not finished: to start, or to go on with."""
    found = []
    for place, keys in runs_of(recipe, out).items():
        if read_summary(place / "summary.json"):
            continue
        note = f" {place.name}"
        begun = (place / "server" / "checkpoint.safetensors").exists()
        if begun:
            found.append(Plan(keys, place, note))
        else:
            found.append(Plan(keys | {"out": str(place)}, note=note))
    return found


def reproduce(recipe: Recipe, out: Path, *, quiet: bool = False) -> Outcome:
    """Run what is not run yet, and put it beside the paper.

    Parameters
    ----------
    recipe : Recipe
        What to run.
    out : Path
        The folder of its runs; what is finished there is not run again.
    quiet : bool
        Whether to show no progress.
    """
    if recipe.computed:
        return _computed(recipe, out)
    jobs.simulate(jobs.prepared(plans(recipe, out), "inline"), "inline", quiet=quiet)
    return read(recipe, out)


def read(recipe: Recipe, out: Path) -> Outcome:
    """What the finished runs in a folder say."""
    summaries = {
        entry.name: [read_summary(one / "summary.json") for one in seeds_of(recipe, entry, out)]
        for entry in recipe.entries
    }
    spent = sum(one.get("seconds", 0.0) for several in summaries.values() for one in several)
    return outcome(recipe, summaries, about(recipe.seeds, spent / 3600))


def _computed(recipe: Recipe, out: Path) -> Outcome:
    """The numbers that a function beside the recipe computes, which must agree to :data:`EXACT`."""
    out.mkdir(parents=True, exist_ok=True)
    compute: Any = imported(f"{folder()}/{recipe.computed}", "computed")
    rows: Sequence[tuple[str, str, float, float]] = compute(out)
    numbers = [
        Number(
            name, label, "value", published, ours, 0.0, 1,
            REPRODUCED if abs(ours - published) <= EXACT * max(1.0, abs(published)) else NOT,
        )
        for name, label, published, ours in rows
    ]  # fmt: skip
    return Outcome(recipe.name, tuple(numbers), (), about((0,), 0.0))


def about(seeds: Sequence[int], hours: float) -> dict[str, Any]:
    """When, where and with what results were made."""
    return {
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "flwr": version("flwr"),
        "seeds": list(seeds),
        "hours": round(hours, 3),
    }


def _commit() -> str:
    """The commit of the checkout this runs from; empty outside of one."""
    root = Path(__file__).parents[2]
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()


def keep(found: Outcome, place: Path) -> None:
    """Write results where they can be committed."""
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found.as_json(), indent=1, ensure_ascii=False)
    write_atomically(place / "result.json", f"{text}\n".encode())
    write_atomically(place / "table.csv", _csv(found).encode())


def kept(place: Path) -> Outcome | None:
    """Results that were written."""
    try:
        told: Mapping[str, Any] = json.loads((place / "result.json").read_text(encoding="utf-8"))
    except OSError:
        return None
    return Outcome.of_json(told)


def _csv(found: Outcome) -> str:
    lines = ["entry,measure,published,mean,std,seeds,difference,verdict"]
    for one in found.numbers:
        numbers = f"{one.published:g},{one.mean:.4f},{one.std:.4f},{one.seeds},{one.difference:.4f}"
        lines.append(f'"{one.label}",{one.measure},{numbers},{one.verdict}')
    return "\n".join(lines) + "\n"
