"""Keys that a paper tuned or does not give: tried on validation data, and the best chosen.

Nothing here looks at test data: trials are judged on what clients hold out of their training data.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bouquet.continuing import settings_of
from bouquet.core.config import Scalar
from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.measure import Measure
from bouquet.reproduction.outcome import Choice, is_better_low, value
from bouquet.reproduction.recipe import BEST, Entry, Recipe
from bouquet.settings import parse
from bouquet.storage.runfolder import RunFolder
from bouquet.storage.runs import INCIDENTAL, read_events, read_summary
from bouquet.sweeping.trials import Score, Trial

FOLDER = "tuning"


def run_in(folder: Path, keys: Mapping[str, Scalar], setting: Mapping[str, Scalar]) -> Trial:
    """A run that is to be, or is already, in a folder; wrong keys are refused."""
    told = parse(keys).run
    values = {**keys, "rounds": told.rounds, "out": str(folder)}
    return Trial(folder, told.scheme, setting, 0, told.seed, -1, values)


def refuse_another(one: Trial) -> None:
    """Refuse a folder that has a run with other keys: its numbers would be taken for this one's."""
    if not (one.folder / "config.toml").exists():
        return
    before = settings_of(RunFolder(one.folder)).flat()
    now = parse(one.values).pinned().flat()
    for name in sorted(now.keys() - INCIDENTAL - {"device"}):
        if before.get(name) != now[name]:
            raise BadInput(
                f"{one.folder} was run with {name} {before.get(name)!r}, not {now[name]!r} as the "
                "recipe now says; choose another --out, or remove that folder."
            )


def trials_of(recipe: Recipe, entry: Entry, out: Path) -> list[list[Trial]]:
    """The trials of each of an entry's settings; none where there is no choice."""
    settings = entry.settings
    if len(settings) == 1:
        return []
    place = out / FOLDER / entry.name
    return [
        [
            run_in(
                place / f"{_called(setting)}-seed{seed}",
                recipe.trial_keys(entry, seed, setting),
                setting,
            )
            for seed in recipe.tuning.seeds
        ]
        for setting in settings
    ]


def _called(setting: Mapping[str, Scalar]) -> str:
    """A setting as the name of a folder: by what it is, so that a longer list changes no other."""
    words = ",".join(f"{name}={value}" for name, value in setting.items())
    return re.sub(r"[^\w.,=+-]", "_", words)[:150]


def choices_of(recipe: Recipe, out: Path) -> list[Choice]:
    """What was chosen, of all entries that had a choice, once their trials have ended."""
    tried = [(entry, trials_of(recipe, entry, out)) for entry in recipe.entries]
    return [_choice(entry, trials) for entry, trials in tried if trials]


def _choice(entry: Entry, tried: Sequence[Sequence[Trial]]) -> Choice:
    scores = [_score(entry, trials, number) for number, trials in enumerate(tried)]
    best = min(scores, key=lambda one: one.rank)
    if not math.isfinite(best.value):
        if best.failed:
            raise RunFailed(f"No setting of {entry.name} came to an end: {best.failed}")
        raise BadInput(
            f"tune-by of {entry.name} must be a number in summary.json, not {entry.tune_by!r}: "
            f"see {tried[0][0].folder}."
        )
    diverged = sum(bool(one.failed) for one in scores)
    return Choice(entry.name, entry.label, best.setting, len(scores), diverged, entry.tune_by,
                  best.value, best.loss)  # fmt: skip


def _score(entry: Entry, trials: Sequence[Trial], number: int) -> Score:
    """How a setting does over its seeds; one that diverged with any of them is out."""
    by, first = entry.tune_by, trials[0]
    measure = Measure(by, is_better_low(by))
    failed = next((one.failed for one in trials if one.failed), "")
    # Rounds before it diverged may have been good.
    summaries = [{} if failed else summary_of(one.folder) for one in trials]
    values = [value(one, by) for one in summaries]
    whose = by.removeprefix(BEST).partition(".")[0]
    losses = [value(one, f"{whose}.loss.mean") for one in summaries]
    return Score(entry.name, number, first.setting, measure, mean(values), mean(losses),
                 first.rounds, tuple(values), failed)  # fmt: skip


def summary_of(folder: Path) -> dict[str, Any]:
    """A run's summary, with the best of its full evaluations under ``best``."""
    best: dict[str, float] = {}
    for event in read_events(folder / "events.jsonl"):
        for name, found in event["metrics"].items():
            better = min if is_better_low(name) else max
            if found is not None:
                best[name] = better(found, best.get(name, found))
    return {**read_summary(folder / "summary.json"), "best": best}
