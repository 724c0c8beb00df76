"""What a run tells of itself: a round's event, the clients' history and table, the summary."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bouquet.core.measure import LOSS, Measure, counts, prefix
from bouquet.core.trees import sha256
from bouquet.server_app.membership import Roster, by_node
from bouquet.server_app.report import Report
from bouquet.server_app.strategy import SchemeStrategy
from bouquet.storage.events import Event, Failure, Host, Metrics

# A client's numbers by measure.
Numbers = Mapping[str, float]
Row = dict[str, Any]


def event_of(stage: str, round_: int, trained: Report) -> Event:
    """A round's event, as far as its training goes."""
    event: Event = {
        "version": 1,
        "round": round_,
        "stage": stage,
        "seconds": 0.0,
        "timing": trained.seconds,
        "nodes": {str(node): seconds for node, seconds in trained.nodes.items()},
        "clients": trained.clients,
        "failures": _failures(trained),
        "bytes_up": trained.bytes_up,
        "bytes_down": trained.bytes_down,
        "evaluated": 0,
        "metrics": {},
    }
    if trained.clipped:
        event["clipped"] = trained.clipped
    return event


def add_evaluation(event: Event, roster: Roster, evaluated: Report, metric: Measure) -> None:
    """Add an evaluation of all clients, with the models they have after the round, to its event."""
    event["timing"]["evaluation"] = evaluated.seconds.get("evaluation", 0.0)
    event["failures"] += _failures(evaluated)
    event["bytes_up"] += evaluated.bytes_up
    event["bytes_down"] += evaluated.bytes_down
    for node, seconds in evaluated.nodes.items():
        both = (event["nodes"].get(str(node)), seconds)
        spent = [part for part in both if part is not None]
        event["nodes"][str(node)] = sum(spent) if spent else None
    event["evaluated"] = len(evaluated.scores)
    event["metrics"] = _means(roster, evaluated.scores)
    late = {c: numbers for c, numbers in evaluated.scores.items() if roster.clients[c].joins}
    if late:
        event["newcomers"] = _means(roster, late)
    if metric.said:
        event["metric"] = metric.said


def hosts(roster: Roster) -> dict[str, Host]:
    """Which clients live where."""
    return {
        str(group[0].place): {"id": str(node), "clients": [client.id for client in group]}
        for node, group in by_node(roster.clients.values()).items()
    }


def history_line(
    round_: int, scores: Mapping[str, Numbers], diagnostics: Mapping[str, Numbers]
) -> dict[str, Any]:
    """What every client that was evaluated did in a round, column by column."""
    clients = sorted(scores)
    rows = [{**scores[client], **diagnostics.get(client, {})} for client in clients]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [_short(row.get(name)) for row in rows] for name in names}
    known = {n: values for n, values in columns.items() if any(v is not None for v in values)}
    return {"version": 1, "round": round_, "clients": clients, **known}


def client_rows(
    roster: Roster, scores: Mapping[str, Numbers], diagnostics: Mapping[str, Numbers]
) -> list[Row]:
    """The table of clients; where some come late, with the round they came in."""
    rows = []
    late = any(client.joins for client in roster.clients.values())
    for client in sorted(roster.clients.values(), key=lambda one: one.id):
        rows.append(
            {
                "client": client.id,
                "node": client.place,
                "train_examples": client.train_examples,
                "test_examples": client.test_examples,
                **({"joined": client.joins} if late else {}),
                **scores.get(client.id, {}),
                **diagnostics.get(client.id, {}),
            }
        )
    return rows


def summary_of(
    strategy: SchemeStrategy,
    engine: str,
    events: Sequence[Event],
    rows: Sequence[Row],
    adaptation: Sequence[Report],
) -> dict[str, Any]:
    """How a run ended, as ``summary.json`` has it."""
    run = strategy.settings.run
    summary: dict[str, Any] = {
        "version": 1,
        "scheme": strategy.settings.scheme.name,
        "engine": engine,
        "seed": run.seed,
        "rounds": run.rounds,
        "clients": len(rows),
        "seconds": sum(event["seconds"] for event in events),
        "bytes_up": sum(event["bytes_up"] for event in events),
        "bytes_down": sum(event["bytes_down"] for event in events),
        "failures": sum(len(event["failures"]) for event in events),
    }
    clipped = sum(len(event.get("clipped", ())) for event in events)
    if clipped or run.max_update_norm:
        summary["clipped"] = clipped
    metric, roster = strategy.task.metric, strategy.roster
    measures = (metric, LOSS)
    gains = [_gain(row, measures) for row in rows]
    summary["helped"] = sum(gain > 0 for gain in gains)
    summary["hurt"] = sum(gain < 0 for gain in gains)
    summary["examples"] = _examples(rows, gains)
    if metric.said:
        summary["metric"] = metric.said
    summary |= _spreads(rows, measures)
    if "train" in strategy.settings.parts:
        summary["train"] = _spreads(rows, measures, "train")
    late = [row for row in rows if row.get("joined")]
    if late:
        summary["newcomers"] = {
            "clients": [row["client"] for row in late],
            "joined": late[0]["joined"],
            **_spreads(late, measures),
            "others": _spreads([row for row in rows if not row["joined"]], measures),
            "adaptation": [_means(roster, report.scores) for report in adaptation],
        }
    summary["shared_sha256"] = sha256(strategy.task.state_dict(strategy.shared))
    return summary


def _failures(report: Report) -> list[Failure]:
    return [{"client": client, "reason": reason} for client, reason in report.failures.items()]


def _short(value: float | None) -> float | None:
    """As many digits as a chart or a table can use: a long run's history is large."""
    return None if value is None else float(f"{value:.6g}")


def _means(roster: Roster, scores: Mapping[str, Numbers]) -> Metrics:
    means: Metrics = {}
    for name in dict.fromkeys(name for numbers in scores.values() for name in numbers):
        known = [(roster.clients[c].test_examples, s[name]) for c, s in scores.items() if name in s]
        spread = _spread(name, known)
        if spread:
            means[name] = spread["mean"]
            means |= {f"{name}_{end}": spread[end] for end in ("p10", "p90")}
    return means


def _spread(name: str, values: Sequence[tuple[int, float]]) -> dict[str, float]:
    """How a measure is spread over clients; ``weighted`` is by their examples.

    Where it is not defined for all of them, ``clients`` says for how many it is.
    """
    defined = [(size, value) for size, value in values if counts(name, value)]
    if not defined:
        return {}
    sizes, numbers = map(np.array, zip(*defined, strict=True))
    some = {"clients": len(defined)} if len(defined) < len(values) else {}
    with np.errstate(over="ignore", invalid="ignore"):  # a loss may have exploded
        return {
            "mean": float(numbers.mean()),
            "weighted": float(np.average(numbers, weights=sizes)),
            "std": float(numbers.std()),
            "p10": float(np.percentile(numbers, 10)),
            "p90": float(np.percentile(numbers, 90)),
            "min": float(numbers.min()),
            "max": float(numbers.max()),
            **some,
        }


def _spreads(
    rows: Sequence[Row], measures: Sequence[Measure], part: str = "test"
) -> dict[str, Any]:
    """How the shared and the personal models do on clients' own examples of a part."""
    spreads: dict[str, Any] = {"shared": {}, "personal": {}}
    for whose, by_measure in spreads.items():
        for what in measures:
            name = f"{prefix(part)}{whose}_{what.name}"
            spread = _spread(
                name, [(row[f"{part}_examples"], row[name]) for row in rows if name in row]
            )
            if spread:
                by_measure[what.name] = spread
    return spreads


def _examples(rows: Sequence[Row], gains: Sequence[float]) -> dict[str, float]:
    """How many examples clients train on, on average: all, and those who are helped or hurt."""
    sizes = [row["train_examples"] for row in rows]
    groups = {
        "mean": sizes,
        "helped": [size for size, gain in zip(sizes, gains, strict=True) if gain > 0],
        "hurt": [size for size, gain in zip(sizes, gains, strict=True) if gain < 0],
    }
    return {name: float(np.mean(found)) for name, found in groups.items() if found}


def _gain(row: Row, measures: Sequence[Measure]) -> float:
    """How much better the personal model does than the shared one, by the first measure known."""
    for what in measures:
        shared, personal = row.get(f"shared_{what.name}"), row.get(f"personal_{what.name}")
        if shared is not None and personal is not None:
            return float(what.gain(shared, personal))
    return math.nan
