"""Run folders as a reader sees them: finished, running, stopped, or cut in the middle.

Nothing here writes, and no broken file is fatal: a reader may come at any moment.
"""

import csv
import json
import math
import os
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bouquet.core.errors import BadInput
from bouquet.core.measure import ACCURATE, Measure, in_event, in_summary
from bouquet.imports import called
from bouquet.storage.events import Event, parse_events

Row = dict[str, float | str | None]

# Keys that change where and how a run computes, not what it is about.
INCIDENTAL = frozenset(
    {"seed", "out", "state-dir", "nodes", "store", "cohort", "cohort-chunk", "save-predictors"}
    | {"save-outcomes"}
)
DEEPEST = 3  # folders below the one that is given


@dataclass(frozen=True)
class Run:
    """What a run's folder says.

    Parameters
    ----------
    path : Path
        Where it is.
    name : str
        Its place below the folder that was searched.
    config : dict
        Every key, flat.
    events : list of Event
        The rounds that can be read, in order.
    clients : list of dict
        The table of clients; empty until the run ends.
    summary : dict
        How it ended; empty until it does.
    seen : float
        When something was last written, in seconds since 1970.
    """

    path: Path
    name: str
    config: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    seen: float = 0.0

    @property
    def scheme(self) -> str:
        """The scheme, or the pipeline of schemes."""
        return str(self.config.get("pipeline") or self.config.get("scheme", "?"))

    @property
    def data(self) -> str:
        """The data set."""
        return called(str(self.config.get("data.name", "?")))

    @property
    def measure(self) -> Measure:
        """What its models are compared by."""
        judged = [event for event in self.events if event["metrics"]]
        if judged:
            return in_event(judged[-1])
        return in_summary(self.summary) if self.summary else ACCURATE

    @property
    def seed(self) -> int:
        """Of every random choice."""
        return int(self.config.get("seed", 0))

    @property
    def rounds(self) -> int:
        """How many there will be."""
        return int(self.config.get("rounds", 0))

    @property
    def done(self) -> int:
        """The last round in the log."""
        return self.events[-1]["round"] if self.events else 0

    def state(self, now: float | None = None) -> str:
        """``finished``, ``running``, or ``stopped`` when nothing was written for long."""
        if self.summary and self.done >= self.rounds:
            return "finished"
        silent = (time.time() if now is None else now) - self.seen
        slowest = max((event["seconds"] for event in self.events), default=0.0)
        return "running" if silent < max(120.0, 5 * slowest) else "stopped"

    def seconds_left(self) -> float | None:
        """How long the remaining rounds take if they go like the last ten."""
        took = [event["seconds"] for event in self.events[-10:]]
        if not took or self.done >= self.rounds:
            return None
        return sum(took) / len(took) * (self.rounds - self.done)


def find(folder: Path) -> list[Path]:
    """The run folders in a folder, which may be one itself, in order of their names."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is no folder.")
    return sorted(_runs_below(folder, DEEPEST))


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "config.toml").is_file():
        yield folder
    elif depth:
        try:
            inside = [one for one in os.scandir(folder) if one.is_dir(follow_symlinks=False)]
        except OSError:  # somebody else's, or gone a moment ago
            return
        for one in inside:
            yield from _runs_below(Path(one.path), depth - 1)


def read(path: Path, name: str = "", events: list[Event] | None = None) -> Run:
    """All that a run's folder says, or its log already read; what is broken is left out."""
    return Run(
        path=path,
        name=name or path.name,
        config=_read_config(path / "config.toml"),
        events=read_events(path / "events.jsonl") if events is None else events,
        clients=read_clients(path / "clients.csv"),
        summary=read_summary(path / "summary.json"),
        seen=max((_modified(path / file) for file in ("config.toml", "events.jsonl")), default=0.0),
    )


def read_all(folders: Sequence[Path]) -> list[Run]:
    """The runs of several folders; a folder without any is refused."""
    runs: dict[Path, Run] = {}
    for folder in folders:
        found = find(folder)
        if not found:
            raise BadInput(f"{folder} holds no run (there is no config.toml in it or below).")
        for path in found:
            below = path.relative_to(folder) if path != folder else Path(folder.absolute().name)
            runs.setdefault(path.resolve(), read(path, str(below)))
    return list(runs.values())


def read_events(path: Path) -> list[Event]:
    """The rounds of a log; a line that is broken or half-written is skipped."""
    return parse_events(_text(path).splitlines())


def number(value: object) -> float | None:
    """A finite number, or nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def flat(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keys of nested tables with dots between."""
    keys: dict[str, Any] = {}
    for name, value in tables.items():
        full = prefix + name
        keys |= flat(value, f"{full}.") if isinstance(value, dict) else {full: value}
    return keys


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run's configuration: scheme, data, and keys that tell it from its like."""
    kinds: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        kinds.setdefault((run.scheme, run.data), []).append(run)
    differ = {kind: _differing(alike) for kind, alike in kinds.items()}
    return [
        " ".join([run.scheme, "on", run.data, *_told(run, differ[run.scheme, run.data])])
        for run in runs
    ]


@dataclass(frozen=True)
class Group:
    """Runs of one configuration that differ in their seeds alone.

    Parameters
    ----------
    name : str
        What tells it from the others.
    runs : tuple of Run
        In order of their seeds.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> str:
        """Them, for people."""
        return " ".join(str(run.seed) for run in self.runs)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The runs by configuration, in the order of their first ones."""
    groups: dict[str, list[Run]] = {}
    for run, label in zip(runs, labels(runs), strict=True):
        groups.setdefault(label, []).append(run)
    return [
        Group(label, tuple(sorted(group, key=lambda run: run.seed)))
        for label, group in groups.items()
    ]


def _differing(alike: Sequence[Run]) -> list[str]:
    """The keys in which runs of the same scheme on the same data differ."""
    names = sorted({key for one in alike for key in one.config} - INCIDENTAL)
    return [key for key in names if len({str(one.config.get(key)) for one in alike}) > 1]


def _told(run: Run, keys: Sequence[str]) -> list[str]:
    return [f"{key}={run.config.get(key, '?')}" for key in keys]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return flat(tomllib.loads(_text(path)))
    except tomllib.TOMLDecodeError:
        return {}


def read_clients(path: Path) -> list[Row]:
    """A table of clients; empty where there is none."""
    rows = []
    for row in csv.DictReader(_text(path).splitlines()):
        if row.get("client"):
            rows.append({key: _cell(key, value) for key, value in row.items() if key is not None})
    return rows


def _cell(column: str, text: object) -> float | str | None:
    if column == "client" or not isinstance(text, str):
        return str(text)
    try:
        return number(float(text))
    except ValueError:
        return text or None


def read_summary(path: Path) -> dict[str, Any]:
    """How a run ended; empty until it does."""
    try:
        summary = json.loads(_text(path))
    except ValueError:
        return {}
    return summary if isinstance(summary, dict) else {}


def _text(path: Path) -> str:
    try:
        with open(path, "rb", opener=not_followed) as file:
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def not_followed(path: str, flags: int) -> int:
    """Open a file that is in the folder itself, not a link out of it."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def stage_starts(run: Run) -> list[tuple[int, str]]:
    """The first round of every stage of a pipeline."""
    starts, before = [], None
    for event in run.events:
        if event.get("stage") != before:
            before = event.get("stage")
            starts.append((int(event["round"]), str(before)))
    return starts if len(starts) > 1 else []
