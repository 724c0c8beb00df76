"""What a web page shows of runs, in portions of a size for a screen."""

import base64
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from bouquet.colours import DASHES, SCHEMES, colour_of, dashes
from bouquet.core.measure import LOSS, Measure
from bouquet.storage.events import Event, Host
from bouquet.storage.history import Line, latest, of_client, spreads
from bouquet.storage.runs import INCIDENTAL, Run, labels, number, stage_starts

T = TypeVar("T")

# What a screen can show: more points than that are thinned out.
MOST_POINTS = 400
MOST_CELLS = 400
MOST_FAILURES = 200
MOST_NAMES = 8  # of a node's clients


def overview(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """A line for each run."""
    found = list(runs.values())
    names = labels(found)
    schemes = {label: run.scheme for label, run in zip(names, found, strict=True)}
    strokes = dict(zip(schemes, dashes(list(schemes.values())), strict=True))
    keys = _differing([_keys(run) for run in found])
    return [
        _line(name, label, run)
        | {"dash": DASHES[strokes[label]]}
        | {"keys": {key: value for key, value in _keys(run).items() if key in keys}}
        for (name, run), label in zip(runs.items(), names, strict=True)
    ]


def _keys(run: Run) -> dict[str, Any]:
    """The keys that matter to a run and are not told elsewhere: none of another scheme's."""
    told = INCIDENTAL | {"scheme", "pipeline", "data.name"}
    others = set(SCHEMES) - set(re.split(r"[ :]+", run.scheme))
    return {
        key: value
        for key, value in run.config.items()
        if key not in told and key.partition(".")[0] not in others
    }


def _differing(configs: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys that two runs have different values for: all of each would be much to send."""
    values: dict[str, set[str]] = {}
    for config in configs:
        for key, value in config.items():
            values.setdefault(key, set()).add(str(value))
    return {key for key, there in values.items() if len(there) > 1}


def _line(name: str, label: str, run: Run) -> dict[str, Any]:
    judged = [event["metrics"] for event in run.events if event["metrics"]]
    metrics = judged[-1] if judged else {}
    return {
        "name": name,
        "label": label,
        "scheme": run.scheme,
        "colour": [colour_of(run.scheme), colour_of(run.scheme, dark=True)],
        "data": run.data,
        "seed": run.seed,
        "state": run.state(),
        "round": run.done,
        "rounds": run.rounds,
        "started": _started(run),
        "seconds": sum(map(_seconds_of, run.events)),
        "bytes": sum(map(_bytes, run.events)),
        "left": run.seconds_left() if run.state() == "running" else None,
        "silent": time.time() - run.seen,
        "measure": run.measure.name,
        "lower_is_better": run.measure.lower_is_better,
        **{key: number(metrics.get(key)) for key in _columns(run.measure)},
    }


def _started(run: Run) -> float:
    """When its first round began, in seconds since 1970; until one ends, when it was last seen."""
    first = run.events[0] if run.events else None
    ended = number(first.get("time")) if first else None
    return run.seen if first is None or ended is None else ended - first["seconds"]


def _bytes(event: Event) -> float:
    return sum(number(event.get(way)) or 0.0 for way in ("bytes_up", "bytes_down"))


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


def curves(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Of each run, what is drawn of many at once."""
    return {
        name: {"curve": _curve(run.events), "stages": stage_starts(run)}
        for name, run in runs.items()
    }


def history_details(run: Run, lines: Sequence[Line]) -> dict[str, Any]:
    """What the clients' history adds: how what is personal is spread, and the newest numbers."""
    return {"spreads": spreads(_thin(lines)), "clients": _clients(run, lines)}


def client_details(run: Run, client: str, lines: Sequence[Line] = ()) -> dict[str, Any] | None:
    """One client's rounds, and its line of the table; nothing for a stranger."""
    row = next((row for row in _clients(run, lines) if row["client"] == client), None)
    if row is None:
        return None
    return {
        "row": row,
        "course": of_client(_thin([line for line in lines if client in line.clients]), client),
        "trained": [event["round"] for event in run.events if client in event["clients"]],
        "failures": [failure for failure in _failures(run) if failure["client"] == client],
    }


def _thin(rounds: Sequence[T]) -> list[T]:
    """At most so many rounds, evenly spaced, the last among them."""
    step = -(-len(rounds) // MOST_POINTS) or 1
    return list(rounds[::-1][::step][::-1])


def _curve(events: Sequence[Event]) -> dict[str, list[float | None]]:
    """The measures over the rounds that have any, and what had been spent by then."""
    judged = _thin([event for event in events if event["metrics"]])
    rounds = [event["round"] for event in judged]
    curve: dict[str, list[float | None]] = {"round": [*rounds]}
    for name, spent in (("seconds", _seconds_of), ("bytes", _bytes)):
        totals = accumulate(map(spent, events))
        until = dict(zip((event["round"] for event in events), totals, strict=True))
        curve[name] = [until[round_] for round_ in rounds]
    there = dict.fromkeys(name for event in judged for name in event["metrics"])
    for name in (name for name in there if name.startswith(("shared_", "personal_", "train_"))):
        values = [number(event["metrics"].get(name)) for event in judged]
        if any(value is not None for value in values):
            curve[name] = values
    return curve


def _seconds_of(event: Event) -> float:
    return number(event.get("seconds")) or 0.0


def _cost(events: Sequence[Event]) -> dict[str, list[float]]:
    """Bytes and seconds of a round; where rounds are thinned out, of the mean round."""
    step = -(-len(events) // MOST_POINTS) or 1
    groups = [events[first : first + step] for first in range(0, len(events), step)]
    cost: dict[str, list[float]] = {"round": [group[-1]["round"] for group in groups]}
    for name in ("bytes_up", "bytes_down"):
        cost[name] = [
            _mean([number(event.get(name)) or 0.0 for event in group]) for group in groups
        ]
    for group in groups:
        for name, value in _mean_parts([_seconds(event) for event in group]).items():
            cost.setdefault(name, []).append(value)
    return cost


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_parts(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: _mean([part[name] for part in parts]) for name in parts[0]}


def _seconds(event: Event) -> dict[str, float]:
    """Where a round's time went; what the slowest node cannot explain was waiting."""
    timing = event["timing"]
    known = {
        name: number(timing.get(name)) or 0.0 for name in ("training", "evaluation", "aggregation")
    }
    return known | {"waiting": max(0.0, _seconds_of(event) - sum(known.values()))}


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
    failed = Counter(failure["client"] for failure in _failures(run))
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
    hosts: dict[str, Host] = {}
    seen: dict[str, dict[str, Any]] = {}
    for event in run.events:
        hosts = event.get("hosts") or hosts
        for node, seconds in event["nodes"].items():
            flower_id = hosts[node]["id"] if node in hosts else "None"
            contact = seen.setdefault(flower_id, {"asked": 0, "missed": 0, "work": 0.0})
            contact["asked"] += 1
            if seconds is None:
                contact["missed"] += 1
            else:
                contact["work"] += number(seconds) or 0.0
                contact["last_seen"], contact["time"] = event["round"], number(event.get("time"))
    failed = Counter(failure["client"] for failure in _failures(run))
    return [
        _node(node, host, seen.get(str(host.get("id")), {}), failed) for node, host in hosts.items()
    ]


def _node(
    node: str, host: Mapping[str, Any], seen: Mapping[str, Any], failed: Mapping[str, int]
) -> dict[str, Any]:
    hosted = host.get("clients")
    clients = [str(client) for client in hosted] if isinstance(hosted, list) else []
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
            "client": str(failure.get("client", "?")),
            "reason": str(failure.get("reason", "?")),
        }
        for event in run.events
        for failure in event["failures"]
        if isinstance(failure, dict)
    ]


def _participation(run: Run, clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Clients x rounds, thinned out to what a screen can show.

    A cell is 0 to 200 by the share of its clients and rounds that trained, or 255 where
    one failed.
    """
    ids = [row["client"] for row in clients]
    tall, wide = min(len(ids), MOST_CELLS), min(len(run.events), MOST_CELLS)
    row_of = {client: number * tall // len(ids) for number, client in enumerate(ids)}
    trained, failed = np.zeros((2, max(1, tall), max(1, wide)))
    for number_, event in enumerate(run.events):
        column = number_ * wide // len(run.events)
        rows = [row_of[client] for client in event["clients"] if client in row_of]
        np.add.at(trained, (rows, column), 1)
        broken = [one.get("client") for one in event["failures"] if isinstance(one, dict)]
        rows = [row_of[client] for client in broken if client in row_of]
        np.add.at(failed, (rows, column), 1)
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
