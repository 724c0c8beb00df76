"""Run folders followed as they grow, in the portions a web page can show."""

import base64
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bouquet.core.measure import LOSS, Measure
from bouquet.report.figures import stage_starts
from bouquet.storage.history import Line, latest, of_client, parse_line, spreads
from bouquet.storage.runs import Run, find, labels, not_followed, number, parse_event, read

T = TypeVar("T")

# What a screen can show: more points than that are thinned out.
MOST_POINTS = 400
MOST_CELLS = 400
MOST_FAILURES = 200
MOST_NAMES = 8  # of a node's clients


@dataclass
class Tail:
    """A file of lines of which only what is new is read.

    Parameters
    ----------
    path : Path
        Of the file.
    """

    path: Path
    _place: int = 0
    _file: int = 0

    def read(self) -> tuple[bool, list[str]]:
        """Whether the file was replaced and is read anew, and the whole lines that are new."""
        anew = False
        try:
            with open(self.path, "rb", opener=not_followed) as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._file or found.st_size < self._place:
                    anew, self._place, self._file = True, 0, found.st_ino
                file.seek(self._place)
                added = file.read()
        except OSError:
            return False, []
        whole = added.rfind(b"\n") + 1
        self._place += whole
        return anew, added[:whole].decode("utf-8", errors="replace").splitlines()


@dataclass
class Log:
    """A run's rounds, read as they come.

    Parameters
    ----------
    path : Path
        Of ``events.jsonl``.
    """

    path: Path
    events: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tail = Tail(self.path)

    def update(self) -> None:
        """Take in what was added; a file that was replaced is read anew."""
        anew, lines = self._tail.read()
        if anew:
            self.events = {}
        for event in filter(None, map(parse_event, lines)):
            self.events[event["round"]] = event


@dataclass
class History:
    """A run's ``history.jsonl``, read as it comes.

    Parameters
    ----------
    path : Path
        Of the file.
    """

    path: Path
    lines: dict[int, Line] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tail = Tail(self.path)
        self._lock = threading.Lock()

    def update(self) -> list[Line]:
        """Take in what was added; returns all lines in order of their rounds."""
        with self._lock:
            anew, added = self._tail.read()
            if anew:
                self.lines = {}
            for line in filter(None, map(parse_line, added)):
                self.lines[line.round] = line
            return [self.lines[round_] for round_ in sorted(self.lines)]


class Watch:
    """The runs in a folder, read when asked and only where something changed.

    A run is asked for by the name it was found under. No path is ever made of what a
    visitor sends, so none can lead out of the folder.

    Parameters
    ----------
    folder : Path
        Of a run, or of many.
    awaited : bool
        Whether the folder may be made later.
    """

    def __init__(self, folder: Path, awaited: bool = False) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._logs: dict[Path, Log] = {}
        self._runs: dict[Path, tuple[object, Run]] = {}
        self._histories: dict[Path, History] = {}
        if not awaited:
            find(folder)  # refuses what is no folder

    def stamps(self) -> dict[str, object]:
        """Something for every run that is another when the run has changed."""
        return {name: stamp for name, (stamp, _) in self._look().items()}

    def runs(self) -> dict[str, Run]:
        """The runs as they are now, by name."""
        return {name: run for name, (_, run) in self._look().items()}

    def history(self, run: Run) -> list[Line]:
        """Every client's numbers in a run; large, so read only where somebody asks."""
        with self._lock:
            found = self._histories.setdefault(run.path, History(run.path / "history.jsonl"))
        return found.update()

    def _look(self) -> dict[str, tuple[object, Run]]:
        with self._lock:
            found = {}
            for path in find(self._folder) if self._folder.is_dir() else []:
                stamp = _stamp(path)
                if path not in self._runs or self._runs[path][0] != stamp:
                    self._runs[path] = (stamp, self._read(path))
                found[self._name(path)] = self._runs[path]
            return found

    def _name(self, path: Path) -> str:
        return path.name if path == self._folder else str(path.relative_to(self._folder))

    def _read(self, path: Path) -> Run:
        log = self._logs.setdefault(path, Log(path / "events.jsonl"))
        log.update()
        events = [log.events[round_] for round_ in sorted(log.events)]
        return read(path, self._name(path), events)


def _stamp(path: Path) -> tuple[tuple[int, int], ...]:
    stamps = []
    for name in ("config.toml", "events.jsonl", "clients.csv", "summary.json"):
        try:
            found = (path / name).stat()
            stamps.append((found.st_mtime_ns, found.st_size))
        except OSError:
            stamps.append((0, 0))
    return tuple(stamps)


def overview(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """A line for each run."""
    names = labels(list(runs.values()))
    return [_line(name, label, run) for (name, run), label in zip(runs.items(), names, strict=True)]


def _line(name: str, label: str, run: Run) -> dict[str, Any]:
    judged = [event["metrics"] for event in run.events if event["metrics"]]
    metrics = judged[-1] if judged else {}
    return {
        "name": name,
        "label": label,
        "scheme": run.scheme,
        "data": run.data,
        "seed": run.seed,
        "state": run.state(),
        "round": run.done,
        "rounds": run.rounds,
        "left": run.seconds_left() if run.state() == "running" else None,
        "silent": time.time() - run.seen,
        "measure": run.measure.name,
        **{key: number(metrics.get(key)) for key in _columns(run.measure)},
    }


def _columns(measure: Measure) -> list[str]:
    """Of a run's numbers, those it is compared by and the losses."""
    kinds = dict.fromkeys((measure, LOSS))
    return [f"{whose}_{kind.name}" for whose in ("shared", "personal") for kind in kinds]


def details(run: Run) -> dict[str, Any]:
    """All that a page shows of one run at once; its history may take longer to read."""
    clients = _clients(run)
    return {
        "measure": asdict(run.measure),
        "curve": _curve(run.events),
        "stages": stage_starts(run),
        "cost": _cost(run.events),
        "clients": clients,
        "nodes": _nodes(run),
        "participation": _participation(run, clients),
        "failures": _failures(run)[-MOST_FAILURES:],
        "failed": sum(len(event["failures"]) for event in run.events),
    }


def histories(run: Run, lines: Sequence[Line]) -> dict[str, Any]:
    """What the clients' history adds: how what is personal is spread, and the newest numbers."""
    return {"spreads": spreads(_thin(lines)), "clients": _clients(run, lines)}


def history(run: Run, client: str, lines: Sequence[Line] = ()) -> dict[str, Any] | None:
    """One client's rounds, and its line of the table; nothing for a stranger."""
    row = next((row for row in _clients(run, lines) if row["client"] == client), None)
    if row is None:
        return None
    return {
        "row": row,
        "course": of_client(_thin([line for line in lines if client in line.clients]), client),
        "trained": [one["round"] for one in run.events if client in one["clients"]],
        "failures": [one for one in _failures(run) if one["client"] == client],
    }


def _thin(rounds: Sequence[T]) -> list[T]:
    """At most so many rounds, evenly spaced, the last among them."""
    step = -(-len(rounds) // MOST_POINTS) or 1
    return list(rounds[::-1][::step][::-1])


def _curve(events: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    """The measures over the rounds that have any."""
    chosen = _thin([one for one in events if one["metrics"]])
    curve: dict[str, list[float | None]] = {"round": [one["round"] for one in chosen]}
    there = dict.fromkeys(name for one in chosen for name in one["metrics"])
    for name in (one for one in there if one.startswith(("shared_", "personal_"))):
        values = [number(one["metrics"].get(name)) for one in chosen]
        if any(value is not None for value in values):
            curve[name] = values
    return curve


def _cost(events: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Bytes and seconds of a round; where rounds are thinned out, of the mean round."""
    step = -(-len(events) // MOST_POINTS) or 1
    groups = [events[place : place + step] for place in range(0, len(events), step)]
    cost: dict[str, list[float]] = {"round": [group[-1]["round"] for group in groups]}
    for name in ("bytes_up", "bytes_down"):
        cost[name] = [_mean([number(one.get(name)) or 0.0 for one in group]) for group in groups]
    for group in groups:
        for name, value in _mean_parts([_seconds(one) for one in group]).items():
            cost.setdefault(name, []).append(value)
    return cost


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_parts(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: _mean([part[name] for part in parts]) for name in parts[0]}


def _seconds(event: dict[str, Any]) -> dict[str, float]:
    """Where a round's time went; what the slowest node cannot explain was waiting."""
    timing = event["timing"]
    known = {
        name: number(timing.get(name)) or 0.0 for name in ("training", "evaluation", "aggregation")
    }
    took = number(event.get("seconds")) or 0.0
    return known | {"waiting": max(0.0, took - sum(known.values()))}


def _clients(run: Run, lines: Sequence[Line] = ()) -> list[dict[str, Any]]:
    """A row a client: what the run's table says, and what its log and history add.

    The table is there when a run has ended; until then, the history is all there is.
    """
    rows: dict[str, dict[str, Any]] = {str(row["client"]): dict(row) for row in run.clients}
    ended, measure = run.state() == "finished", run.measure
    for client, numbers in latest(lines).items():
        row = rows.setdefault(client, {"client": client})
        # A table of a run that goes on is from before it was resumed.
        rows[client] = row | {k: v for k, v in numbers.items() if not (ended and k in row)}
    seen: dict[str, tuple[int, int]] = {}
    for event in run.events:
        for client in event["clients"]:
            seen[client] = (seen.get(client, (0, 0))[0] + 1, event["round"])
    failed = Counter(one["client"] for one in _failures(run))
    for client in sorted({*rows, *seen, *failed}):
        row = rows.setdefault(client, {"client": client})
        shared, own = row.get(f"shared_{measure.name}"), row.get(f"personal_{measure.name}")
        if measure != LOSS and isinstance(shared, float) and isinstance(own, float):
            row["change"] = measure.gain(shared, own)
        row["trained"], row["last_seen"] = seen.get(client, (0, None))
        row["failures"] = failed[client]
    return [rows[client] for client in sorted(rows)]


def _nodes(run: Run) -> list[dict[str, Any]]:
    """A row a node: whom it hosts, when it was last heard of, how often in vain.

    Nodes are numbered anew when one comes; Flower's id tells which is which.
    """
    hosts: dict[str, dict[str, Any]] = {}
    seen: dict[str, dict[str, Any]] = {}
    for event in run.events:
        known = {node: host for node, host in event["hosts"].items() if isinstance(host, dict)}
        hosts = known or hosts
        for node, seconds in event["nodes"].items():
            one = seen.setdefault(
                str(hosts.get(node, {}).get("id")), {"asked": 0, "missed": 0, "work": 0.0}
            )
            one["asked"] += 1
            if seconds is None:
                one["missed"] += 1
            else:
                one["work"] += number(seconds) or 0.0
                one["last_seen"], one["time"] = event["round"], number(event.get("time"))
    failed = Counter(one["client"] for one in _failures(run))
    return [
        _node(node, host, seen.get(str(host.get("id")), {}), failed) for node, host in hosts.items()
    ]


def _node(
    node: str, host: Mapping[str, Any], seen: Mapping[str, Any], failed: Mapping[str, int]
) -> dict[str, Any]:
    told = host.get("clients")
    clients = [str(one) for one in told] if isinstance(told, list) else []
    answered = seen.get("asked", 0) - seen.get("missed", 0)
    return {
        "node": node,
        "id": str(host.get("id")),
        "clients": len(clients),
        "names": clients[:MOST_NAMES],
        "last_seen": seen.get("last_seen"),
        "time": seen.get("time"),
        "seconds": seen["work"] / answered if answered else None,
        "missed": seen.get("missed", 0),
        "failures": sum(failed.get(client, 0) for client in clients),
    }


def _failures(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "round": event["round"],
            "client": str(one.get("client", "?")),
            "reason": str(one.get("reason", "?")),
        }
        for event in run.events
        for one in event["failures"]
        if isinstance(one, dict)
    ]


def _participation(run: Run, clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Clients x rounds, thinned out to what a screen can show.

    A cell is 0 to 200 by the share of its clients and rounds that trained, or 255 where
    one failed.
    """
    ids = [row["client"] for row in clients]
    place_of = {client: place for place, client in enumerate(ids)}
    tall, wide = min(len(ids), MOST_CELLS), min(len(run.events), MOST_CELLS)
    trained, failed = np.zeros((2, max(1, tall), max(1, wide)))
    for number_, event in enumerate(run.events):
        column = number_ * wide // len(run.events)
        places = [place_of[one] * tall // len(ids) for one in event["clients"] if one in place_of]
        np.add.at(trained, (places, column), 1)
        broken = [one.get("client") for one in event["failures"] if isinstance(one, dict)]
        places = [place_of[one] * tall // len(ids) for one in broken if one in place_of]
        np.add.at(failed, (places, column), 1)
    heights = np.bincount(np.arange(len(ids)) * tall // max(1, len(ids)), minlength=max(1, tall))
    widths = np.bincount(
        np.arange(len(run.events)) * wide // max(1, len(run.events)), minlength=max(1, wide)
    )
    share = trained / np.maximum(1, np.outer(heights, widths))
    cells = np.where(failed > 0, 255, np.clip(200 * share, 0, 200)).astype(np.uint8)
    return {
        "clients": len(ids),
        "first": run.events[0]["round"] if run.events else 0,
        "last": run.done,
        "width": wide,
        "height": tall,
        "cells": base64.b64encode(cells.tobytes()).decode(),
    }
