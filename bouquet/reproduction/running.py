"""An experiment's runs: made, or gone on with, in one folder."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bouquet.core.errors import BadInput, RunFailed
from bouquet.imports import imported
from bouquet.progress import Overall, overall
from bouquet.reproduction.outcome import NOT, REPRODUCED, Choice, Number, Outcome, outcome
from bouquet.reproduction.recipe import Entry, Recipe, folder
from bouquet.reproduction.tuning import (
    FOLDER,
    choices_of,
    refuse_another,
    run_in,
    summary_of,
    trials_of,
)
from bouquet.server_app.divergence import DIVERGED
from bouquet.storage.atomic import made, write_atomically
from bouquet.storage.runfolder import RunFolder
from bouquet.storage.runs import read_summary
from bouquet.sweeping.crew import Crew, crew
from bouquet.sweeping.lock import LOCK, locked
from bouquet.sweeping.trials import FAILED, Trial
from bouquet.sweeping.worker import News

# What is known by algebra is known to so much.
EXACT = 1e-9


def seeds_of(recipe: Recipe, entry: Entry, out: Path) -> list[Path]:
    """The folders of an entry's runs."""
    return [out / f"{entry.name}-seed{seed}" for seed in recipe.seeds]


def finals_of(recipe: Recipe, out: Path, choices: Iterable[Choice] = ()) -> list[Trial]:
    """The runs whose numbers count, with what was chosen; a seed's before the next seed's."""
    chosen = {one.entry: one.setting for one in choices}
    return [
        run_in(
            out / f"{entry.name}-seed{seed}",
            recipe.keys_of(entry, seed, chosen.get(entry.name)),
            chosen.get(entry.name, {}),
        )
        for seed in recipe.seeds
        for entry in recipe.entries
    ]


def reproduce(recipe: Recipe, out: Path, *, workers: int = 0, quiet: bool = False) -> Outcome:
    """Run what is not run yet, and put it beside the paper.

    Parameters
    ----------
    recipe : Recipe
        What to run.
    out : Path
        The folder of its runs; what is finished there is not run again.
    workers : int
        How many runs go side by side, each in a process of its own; 0 for one a core, 1 for this
        process alone. It changes no number.
    quiet : bool
        Whether to show no progress.
    """
    if recipe.computed:
        return _computed(recipe, out)
    tried = [trials_of(recipe, entry, out) for entry in recipe.entries]
    trials = [one for settings in tried for alike in settings for one in alike]
    # Before the choice the first settings stand in: to refuse wrong keys now, and count rounds.
    finals = finals_of(recipe, out)
    certain = tuple(entry for entry in recipe.entries if len(entry.settings) == 1)
    for one in finals_of(replace(recipe, entries=certain), out):
        refuse_another(one)
    rounds = sum(one.rounds for one in (*trials, *finals))
    RunFolder(out).check_writable()
    with (
        made(out),
        locked(out) as keep,
        _tidy(out),
        overall(len(trials) + len(finals), rounds, quiet) as progress,
        crew("inline", workers, False, out / "logs", keep) as hands,
    ):
        _do(trials, out, hands, progress, light=True)
        failed = _do(finals_of(recipe, out, choices_of(recipe, out)), out, hands, progress)
    failed = {name: why for name, why in failed.items() if DIVERGED not in why}
    if failed:
        raise RunFailed(f"{', '.join(failed)} failed: {next(iter(failed.values()))}")
    return read(recipe, out)


def _do(
    runs: Sequence[Trial], out: Path, crew: Crew, progress: Overall, light: bool = False
) -> dict[str, str]:
    """Have runs done that are not, side by side; returns why some failed.

    Of one that is done only what it found out stays. One that failed is never tried again where it
    is light, or has diverged: it would again.
    """
    failed: dict[str, str] = {}
    left = []
    for one in runs:
        refuse_another(one)
        if one.done(one.rounds):
            progress.skip(_called(one, out), one.rounds)
        else:
            left.append(one)

    def hear(place: int, news: News) -> None:
        one = left[place]
        if news.kind == "round":
            progress.at(_called(one, out), news.round)
            return
        if news.kind == "failed":
            failed[_called(one, out)] = news.words
        progress.end(_called(one, out), one.rounds, news.kind.replace("done", ""))
        if news.kind == "failed" and (light or DIVERGED in news.words):
            one.fail(news.words)
        if one.done(one.rounds):
            one.lighten()

    # Each by itself: bouquet simulate with the same keys ends with the same bits.
    crew.run([[one.plan(one.rounds)] for one in left], hear)
    return failed


def _called(one: Trial, out: Path) -> str:
    return str(one.folder.relative_to(out))


@contextmanager
def _tidy(out: Path) -> Iterator[None]:
    """Of what is refused before a run began, nothing is left."""
    try:
        yield
    except BadInput:
        if not any(out.rglob("config.toml")):
            for part in (FOLDER, "logs"):
                shutil.rmtree(out / part, ignore_errors=True)
            (out / LOCK).unlink(missing_ok=True)
        raise


def read(recipe: Recipe, out: Path) -> Outcome:
    """What the finished runs in a folder say."""
    summaries = {
        entry.name: [
            {} if (one / FAILED).exists() else summary_of(one)
            for one in seeds_of(recipe, entry, out)
        ]
        for entry in recipe.entries
    }
    every = out.rglob("summary.json")  # trials too
    spent = sum(read_summary(one).get("seconds", 0.0) for one in every)
    when = about(recipe, spent / 3600)
    return outcome(recipe, summaries, when, choices_of(recipe, out))


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
    return Outcome(recipe.name, tuple(numbers), (), about(recipe, 0.0))


def about(recipe: Recipe, hours: float) -> dict[str, Any]:
    """When, where and with what results were made."""
    return {
        "commit": _commit(),
        "mark": recipe.mark,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "flwr": version("flwr"),
        "seeds": list(recipe.seeds),
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
    lines = ["entry,measure,published,mean,std,seeds,difference,error,verdict,chosen"]
    chosen = {one.entry: one.words for one in found.choices}
    for one in found.numbers:
        numbers = [one.mean, one.std, one.seeds, one.difference, one.error]
        cells = [f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in numbers]
        ours = ",".join([f"{one.published:g}", *cells, one.verdict])
        lines.append(f'"{one.label}",{one.measure},{ours},"{chosen.get(one.entry, "")}"')
    return "\n".join(lines) + "\n"
