"""A run's rounds: what ``events.jsonl`` tells of each, how it is read, and each in words."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NotRequired, TypedDict, cast

from bouquet.core.measure import ACCURATE, Said, in_event
from bouquet.core.untrusted import Malformed, ids, listed, number, real, text, whole

# Means and percentiles over clients by name; in a log, what is not finite is null.
Metrics = dict[str, float | None]


class Failure(TypedDict):
    """A client that was left out of a round, and why."""

    client: str
    reason: str


class LeftOut(TypedDict):
    """A node, by Flower's id, that could not introduce itself, its key's clients, and why."""

    node: str
    clients: list[str]
    reason: str


class Host(TypedDict):
    """A node by Flower's id, which changes from run to run, and the clients that live there."""

    id: str
    clients: list[str]


class Event(TypedDict):
    """A round, as a line of ``events.jsonl`` tells it; docs/run-folder.md explains each key."""

    version: NotRequired[int]
    round: int
    stage: str
    seconds: float
    timing: dict[str, float]
    nodes: dict[str, float | None]
    clients: list[str]
    failures: list[Failure]
    bytes_up: int
    bytes_down: int
    evaluated: NotRequired[int]
    metrics: Metrics
    metric: NotRequired[Said]
    hosts: NotRequired[dict[str, Host]]
    newcomers: NotRequired[Metrics]
    clipped: NotRequired[list[str]]
    left_out: NotRequired[list[LeftOut]]
    time: NotRequired[float]


# Told of every round as it ends.
Observer = Callable[[Event], None]


def parse_event(line: bytes | str) -> Event | None:
    """A line of a log, or nothing where a crash cut it short or it was damaged."""
    try:
        found = json.loads(line.decode() if isinstance(line, bytes) else line)
        _check_event(_mapping(found, "an event"))
    except (ValueError, KeyError, RecursionError):
        return None
    return cast(Event, found)


def parse_events(lines: Iterable[bytes | str]) -> list[Event]:
    """The rounds that a log's lines tell of, in order; lines that are no event are left out."""
    events: dict[int, Event] = {}
    for event in filter(None, map(parse_event, lines)):
        events.setdefault(event["round"], event)
    return [events[round_] for round_ in sorted(events)]


def _check_event(event: Mapping[str, object]) -> None:
    """Refuse what nobody could show, and a resumed run not build on."""
    whole(event["round"], "round", low=1)
    text(event["stage"], "stage")
    number(event["seconds"], "seconds")
    whole(event["bytes_up"], "bytes_up")
    whole(event["bytes_down"], "bytes_down")
    ids(event["clients"], "clients")
    listed(event["failures"], "failures", _failure)
    listed(event.get("left_out", []), "left_out", _left_out)
    for name in ("metrics", "timing", "nodes"):
        for key, value in _mapping(event[name], name).items():
            perhaps(value, key)
    for host in _mapping(event.get("hosts", {}), "hosts").values():
        host = _mapping(host, "hosts")
        text(host["id"], "id")
        ids(host["clients"], "clients")
    ids(event.get("clipped", []), "clipped")
    perhaps(event.get("time"), "time")


def _mapping(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Malformed(f"{what} must be an object")
    return value


def _failure(value: object, what: str) -> None:
    failure = _mapping(value, what)
    text(failure["client"], what)
    text(failure["reason"], what)


def _left_out(value: object, what: str) -> None:
    node = _mapping(value, what)
    text(node["node"], what)
    ids(node["clients"], what)
    text(node["reason"], what)


def perhaps(value: object, what: str) -> float | None:
    """A number, or null for one that is not known."""
    return None if value is None else real(value, what)


def telling(brief: bool = False) -> Callable[[Event], str]:
    """A function that is told of a run's rounds, and says how each went.

    A round without evaluation shows the numbers last known, and the round they are of. Beside a
    bar there is little room: with ``brief`` accuracy goes without saying, and so does the time.
    """
    known: Event | None = None

    def words(event: Event) -> str:
        nonlocal known
        if known is None or event["metrics"]:
            known = event
        numbers = _measured(known, brief)
        if numbers and known["round"] != event["round"]:
            numbers[-1] += f" (round {known['round']})"
        failed = [f"{len(event['failures'])} failed"] if event["failures"] else []
        failed += [f"{len(event['left_out'])} nodes left out"] if event.get("left_out") else []
        failed += [f"{len(event['clipped'])} clipped"] if event.get("clipped") else []
        time = f"{event['seconds']:.2f} s/round"
        return "  ".join([*failed, *numbers] if brief else [time, *numbers, *failed])

    return words


def _measured(event: Event, brief: bool) -> list[str]:
    what = in_event(event)
    said = "" if brief and what == ACCURATE else f"{what.name} "
    found = {
        whose: event["metrics"].get(f"{whose}_{what.name}") for whose in ("shared", "personal")
    }
    return [f"{who} {said}{short(value)}" for who, value in found.items() if value is not None]


def short(value: float) -> str:
    """A number as people read it."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3e}"
