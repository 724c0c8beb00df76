"""A sweep's runs: where each is, what it is told, and what came of it."""

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from bouquet.comparison import common_to
from bouquet.core.config import Scalar
from bouquet.core.measure import LOSS, Measure, in_event
from bouquet.jobs import Plan
from bouquet.settings import RunConfig
from bouquet.storage.atomic import write_atomically
from bouquet.storage.runfolder import RunFolder
from bouquet.storage.runs import number, read_events, read_summary
from bouquet.strategies.registry import find
from bouquet.sweeping.asked import Asked
from bouquet.sweeping.space import Setting, settings_of

FAILED = "failed.json"


@dataclass(frozen=True)
class Trial:
    """A run of a sweep.

    Parameters
    ----------
    folder : Path
        Where it is.
    scheme : str
        As the sweep names it.
    setting : mapping
        The searched keys' values.
    number : int
        The setting's, among those of the scheme.
    seed : int
        The run's.
    fold : int
        Which part is held out; -1 where none or a share is.
    values : mapping
        All its keys.
    """

    folder: Path
    scheme: str
    setting: Mapping[str, Scalar]
    number: int
    seed: int
    fold: int
    values: Mapping[str, object]

    @property
    def name(self) -> str:
        """The scheme's own name."""
        return find(self.scheme).name

    @property
    def rounds(self) -> int:
        """How many it has, by its keys."""
        found = self.values["rounds"]
        assert isinstance(found, int)
        return found

    @property
    def failed(self) -> str:
        """Why it will never end; empty if it may."""
        return str(read_summary(self.folder / FAILED).get("reason", ""))

    def fail(self, reason: str) -> None:
        """Remember that it will never end: another attempt would fail as well."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / FAILED, json.dumps({"reason": reason}).encode())

    def done(self, rounds: int) -> bool:
        """Whether it has ended after so many rounds or more, or never will."""
        ended = number(read_summary(self.folder / "summary.json").get("rounds")) or 0
        return ended >= rounds or bool(self.failed)

    def plan(self, rounds: int) -> Plan:
        """What is left to do, for so many rounds."""
        there = RunFolder(self.folder)
        if there.checkpoint.exists() or there.previous_checkpoint.exists():
            return Plan({"rounds": rounds}, self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)  # killed before it had begun
        return Plan({**self.values, "rounds": rounds})

    def lighten(self) -> None:
        """Drop what only a run that goes on needs; what it found out stays."""
        for part in ("state", "server"):
            shutil.rmtree(self.folder / part, ignore_errors=True)


def trials_of(asked: Asked, folder: Path) -> list[Trial]:
    """The trials, those that share data beside each other."""
    how, found = asked.how, []
    settings = settings_of(asked)
    for seed in asked.tune_seeds:
        for fold in range(how.folds) if how.folds else [-1]:
            part: dict[str, object] = {"validation": how.validation}
            if how.folds:
                part = {"validation-folds": how.folds, "validation-fold": fold}
            own = {**part, "evaluate-on": "validation", "eval-every": 0}
            own |= {"save-predictors": False, "save-outcomes": False}
            for scheme, tried in settings.items():
                for place, setting in enumerate(tried):
                    ending = f"-fold{fold}" if how.folds else ""
                    name = f"{find(scheme).name}-{place:03d}-seed{seed}{ending}"
                    at = folder / "trials" / name
                    values = _values(asked, scheme, setting, seed, at) | own
                    found.append(Trial(at, scheme, setting, place, seed, fold, values))
    return found


def finals_of(asked: Asked, folder: Path, chosen: Mapping[str, int]) -> list[Trial]:
    """The runs of what was chosen, by scheme: on all training data, judged on test data."""
    settings, found = settings_of(asked), []
    for scheme in asked.schemes:
        name = find(scheme).name
        setting = settings[scheme][chosen[name]]
        for seed in asked.seeds:
            at = folder / "final" / f"{name}-seed{seed}"
            values = _values(asked, scheme, setting, seed, at)
            found.append(Trial(at, scheme, setting, chosen[name], seed, -1, values))
    return found


def _values(
    asked: Asked, scheme: str, setting: Setting, seed: int, folder: Path
) -> dict[str, object]:
    common = common_to(scheme, asked.schemes, {**asked.keys, **setting})
    # One node: trials that run side by side need no threads, and end alike on any machine.
    own = {"nodes": common.get("nodes") or 1, "scheme": scheme, "seed": seed, "out": str(folder)}
    return {"rounds": RunConfig().rounds, **common, **own}


@dataclass(frozen=True)
class Score:
    """How well a setting does on validation data; a mean over its trials.

    Parameters
    ----------
    scheme : str
        The scheme's own name.
    number : int
        The setting's.
    setting : mapping
        The searched keys' values.
    measure : Measure
        What it is compared by.
    value, loss : float
        The personal models' mean by that measure, and their loss; NaN where a trial failed.
    rounds : int
        How many rounds its trials had.
    spread : tuple of float
        The same by seed, in the order of the seeds.
    failed : str
        Why it failed.
    """

    scheme: str
    number: int
    setting: Mapping[str, Scalar]
    measure: Measure
    value: float
    loss: float
    rounds: int
    by_seed: tuple[float, ...]
    failed: str = ""

    @property
    def rank(self) -> tuple[bool, float, float, int]:
        """What sorts the better before the worse: the measure, then the loss, then the order."""
        known = math.isfinite(self.value)
        value = self.value if self.measure.lower_is_better else -self.value
        loss = self.loss if math.isfinite(self.loss) else math.inf
        return (not known, value if known else 0.0, loss, self.number)

    @property
    def row(self) -> dict[str, object]:
        """Its line of a table."""
        return {
            "scheme": self.scheme,
            **self.setting,
            "rounds": self.rounds,
            f"validation_{self.measure.name}": self.value,
            "validation_loss": self.loss,
            "failed": self.failed,
        }


def scores(asked: Asked, trials: Iterable[Trial], rounds: int = 0) -> list[Score]:
    """The settings' scores after so many rounds; without, after the last that all trials had."""
    groups: dict[tuple[str, int], list[Trial]] = {}
    for one in trials:
        groups.setdefault((one.name, one.number), []).append(one)
    return [_score(asked, alike, rounds) for alike in groups.values()]


def _score(asked: Asked, trials: Sequence[Trial], rounds: int) -> Score:
    first, reached = trials[0], []
    for one in trials:
        judged = [e for e in read_events(one.folder / "events.jsonl") if e["metrics"]]
        reached.append({event["round"]: event for event in judged})
    shared = set.intersection(*(set(one) for one in reached))
    last = rounds or max(shared, default=0)
    failed = next((one.failed for one in trials if one.failed), "")
    if failed or last not in shared:
        return Score(
            first.name, first.number, first.setting, LOSS, math.nan, math.nan, last, (), failed
        )
    events = [one[last] for one in reached]
    measure = LOSS if asked.how.measure == "loss" else in_event(events[0])
    values = [_number(event["metrics"].get(f"personal_{measure.name}")) for event in events]
    losses = [_number(event["metrics"].get("personal_loss")) for event in events]
    by_seed = tuple(
        mean(v for v, t in zip(values, trials, strict=True) if t.seed == seed)
        for seed in asked.tune_seeds
    )
    return Score(
        first.name, first.number, first.setting, measure, mean(values), mean(losses), last, by_seed
    )


def _number(told: object) -> float:
    found = number(told)
    return math.nan if found is None else found


def best(found: Iterable[Score]) -> dict[str, list[Score]]:
    """Each scheme's settings, the best first."""
    schemes: dict[str, list[Score]] = {}
    for one in found:
        schemes.setdefault(one.scheme, []).append(one)
    return {name: sorted(alike, key=lambda one: one.rank) for name, alike in schemes.items()}
