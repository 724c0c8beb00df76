"""How a sweep goes: trials on validation data, a choice, then what was chosen on all data."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.measure import in_summary
from bouquet.progress import Overall, overall
from bouquet.settings import parse
from bouquet.storage.atomic import made, write_atomically
from bouquet.storage.events import short
from bouquet.storage.runfolder import RunFolder, to_csv, to_json, unused
from bouquet.storage.runs import number, read_summary
from bouquet.strategies.registry import find
from bouquet.sweeping.asked import FILE, Asked, read_file
from bouquet.sweeping.crew import Crew, crew
from bouquet.sweeping.grouping import align, grouped
from bouquet.sweeping.lock import LOCK, locked
from bouquet.sweeping.space import settings_of
from bouquet.sweeping.trials import Score, Trial, best, finals_of, scores, trials_of
from bouquet.sweeping.worker import News

CHOSEN = "chosen.json"
KEPT = 3  # halving goes on with one in so many


def folder_of(asked: Asked, out: str, data: str) -> Path:
    """Where a sweep is to be: a new folder, or that of the same sweep, which then goes on."""
    folder = Path(out) if out else unused(f"sweep-{data}")
    RunFolder(folder).check_writable()
    if not (folder / FILE).exists():
        if (folder / "config.toml").exists() or (folder / "compare.toml").exists():
            raise BadInput(f"out: {folder} already holds runs; choose another folder.")
        return folder
    before, now = read_file(folder / FILE)[0].told(), asked.told()
    differ = [name for name in now if before.get(name) != now[name]]
    if differ:
        raise BadInput(
            f"out: {folder} holds another sweep, whose {differ[0]} is "
            f"{before.get(differ[0])!r}, not {now[differ[0]]!r}; choose another folder."
        )
    return folder


def resumed(folder: Path) -> Asked:
    """The sweep in a folder, to go on with."""
    if not (folder / FILE).exists():
        raise BadInput(f"--resume: {folder} holds no sweep (there is no {FILE} in it).")
    return read_file(folder / FILE)[0]


def check(asked: Asked, folder: Path) -> None:
    """Refuse, before anything runs, what any of the runs would refuse."""
    once = replace(asked, tune_seeds=asked.tune_seeds[:1], seeds=asked.seeds[:1])
    for one in trials_of(once, folder):
        for rounds in rungs(asked, folder):
            parse({**one.values, "rounds": rounds or one.rounds})
    for one in finals_of(once, folder, {find(scheme).name: 0 for scheme in asked.schemes}):
        parse(one.values)


def rungs(asked: Asked, folder: Path) -> list[int]:
    """The rounds after which trials are compared; 0 for all of a trial's own."""
    if asked.how.stop == "never":
        return [0]
    whole = trials_of(asked, folder)[0].rounds
    count = max(len(found) for found in settings_of(asked).values())
    steps = int(math.log(count, KEPT) + 1e-9)
    return sorted({-(-whole // KEPT**step) for step in range(steps + 1)})


@dataclass(frozen=True)
class Course:
    """A sweep that is under way.

    Parameters
    ----------
    asked : Asked
        What it is about.
    folder : Path
        Where it is.
    crew : Crew
        Who trains.
    progress : Overall
        Who is told how far it is.
    """

    asked: Asked
    folder: Path
    crew: Crew
    progress: Overall

    def tune(self) -> dict[str, Score]:
        """Run the trials; returns the best setting of each scheme."""
        going = trials_of(self.asked, self.folder)
        stages = rungs(self.asked, self.folder)
        for rounds, then in zip(stages, [*stages[1:], None], strict=True):
            self._run(grouped(going, self.asked.how.together), rounds, light=then is None)
            if then is None:
                break
            staying = _staying(best(scores(self.asked, going, rounds)))
            for one in going:
                if one.number not in staying[one.name]:
                    one.lighten()
            going = [one for one in going if one.number in staying[one.name]]
        found = best(scores(self.asked, going))
        for name, tried in found.items():
            if not math.isfinite(tried[0].value):
                raise RunFailed(f"No setting of {name} came to an end: {tried[0].failed}")
        return {name: tried[0] for name, tried in found.items()}

    def finish(self, chosen: Mapping[str, Score]) -> None:
        """Run what was chosen, on all training data, with every seed."""
        numbers = {name: score.number for name, score in chosen.items()}
        finals = finals_of(self.asked, self.folder, numbers)
        # Each by itself: bouquet simulate with the same keys ends with the same bits.
        self._run([[one] for one in finals], 0, light=False)
        for one in finals:
            if one.failed:
                raise RunFailed(
                    f"{one.name} with seed {one.seed} failed with what was chosen for it: "
                    f"{one.failed}"
                )

    def _run(self, planned: Sequence[Sequence[Trial]], rounds: int, light: bool) -> None:
        """Have groups of trials done so many rounds, all of their own where 0."""
        groups = []
        for group in planned:
            left = [one for one in group if not one.done(rounds or one.rounds)]
            for one in group:
                if one not in left:
                    self.progress.skip(one.folder.name, rounds or one.rounds)
            if left:
                align(left)
                groups.append(left)

        def hear(group: int, news: News) -> None:
            one = groups[group][news.place]
            if news.kind == "round":
                self.progress.at(one.folder.name, news.round)
                return
            if news.kind == "failed":
                one.fail(news.words)
            self.progress.end(one.folder.name, rounds or one.rounds, _said(one))
            if light:
                one.lighten()

        plans = [[one.plan(rounds or one.rounds) for one in group] for group in groups]
        self.crew.run(plans, hear)


def _staying(found: Mapping[str, Sequence[Score]]) -> dict[str, set[int]]:
    """The settings that go on, by scheme: the best third."""
    return {
        name: {one.number for one in tried[: max(1, -(-len(tried) // KEPT))]}
        for name, tried in found.items()
    }


def run(
    asked: Asked, folder: Path, *, engine: str = "inline", count: int = 0, quiet: bool = False
) -> None:
    """Do all of a sweep that is not done yet.

    Parameters
    ----------
    asked : Asked
        What it is about.
    folder : Path
        Where it is, from :func:`folder_of`.
    engine : str
        ``inline`` or ``ray``: where the workers are.
    count : int
        How many; 0 for one a core.
    quiet : bool
        Whether to show no progress.
    """
    if engine not in ("inline", "ray"):
        raise BadInput(f"engine must be 'inline' or 'ray', not {engine!r}.")
    if count < 0:
        raise BadInput(f"workers must be a whole number of at least 0, not {count}.")
    here = asked.has_objects
    if here and engine == "ray":
        raise BadInput(
            "A sweep with objects of this program runs on engine 'inline': ray's workers do not "
            "have them; name them by import path, package.module:Name or ./file.py:Name."
        )
    check(asked, folder)
    with made(folder), locked(folder) as keep, _tidy(folder):
        write_atomically(folder / FILE, asked.to_toml())
        with (
            overall(*_extent(asked, folder), quiet) as progress,
            crew(engine, count, here, folder / "logs", keep) as hands,
        ):
            course = Course(asked, folder, hands, progress)
            chosen = course.tune()
            _write_choice(asked, folder, chosen)
            course.finish(chosen)


@contextmanager
def _tidy(folder: Path) -> Iterator[None]:
    """Of a sweep that is refused before a run began, nothing is left."""
    try:
        yield
    except BadInput:
        if not any(folder.glob("*/*/config.toml")):
            for part in ("logs", "trials", "final"):
                shutil.rmtree(folder / part, ignore_errors=True)
            for file in (FILE, LOCK):
                (folder / file).unlink(missing_ok=True)
        raise


def _extent(asked: Asked, folder: Path) -> tuple[int, int]:
    """How many runs there are, and how many rounds in all."""
    going, runs, total, before = trials_of(asked, folder), 0, 0, 0
    runs = len(going) + len(asked.schemes) * len(asked.seeds)
    whole = max(one.rounds for one in going)
    for rounds in rungs(asked, folder):
        total += sum((rounds or one.rounds) - before for one in going)
        before = rounds
        going = _first(going, KEPT)
    return runs, total + whole * len(asked.schemes) * len(asked.seeds)


def _first(going: Sequence[Trial], share: int) -> list[Trial]:
    """As many trials as would go on."""
    counts: dict[str, int] = {}
    for one in going:
        counts[one.name] = max(counts.get(one.name, 0), one.number + 1)
    return [one for one in going if one.number < -(-counts[one.name] // share)]


def _write_choice(asked: Asked, folder: Path, chosen: Mapping[str, Score]) -> None:
    """What was chosen, and what every setting came to."""
    found = scores(asked, trials_of(asked, folder))
    schemes: dict[str, Any] = {
        name: {
            "setting": dict(one.setting),
            "number": one.number,
            "tried": sum(other.scheme == name for other in found),
            "measure": one.measure.name,
            "validation": one.value,
            "validation_loss": one.loss,
        }
        for name, one in chosen.items()
    }
    told = to_json({"version": 1, "schemes": schemes}, indent=2) + "\n"
    write_atomically(folder / CHOSEN, told.encode())
    write_atomically(folder / "trials.csv", to_csv([one.row for one in found]))


def _said(one: Trial) -> str:
    """How a run ended, in words."""
    if one.failed:
        return "failed"
    summary = read_summary(one.folder / "summary.json")
    what = in_summary(summary)
    value = number(summary.get("personal", {}).get(what.name, {}).get("mean"))
    part = "validation" if one.values.get("evaluate-on") else "test"
    return "" if value is None else f"{part} {what.name} {short(value)}"
