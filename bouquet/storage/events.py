"""A run's rounds in words, for terminals and logs."""

from collections.abc import Callable
from typing import Any

from bouquet.core.measure import ACCURATE, in_event

Event = dict[str, Any]


def telling(brief: bool = False) -> Callable[[Event], str]:
    """A function that is told of a run's rounds, and says how each went.

    A round without evaluation shows the numbers last known, and the round they are of. Beside a
    bar there is little room: with ``brief`` accuracy goes without saying, and so does the time.
    """
    known: Event = {"metrics": {}}

    def words(event: Event) -> str:
        nonlocal known
        known = event if event["metrics"] else known
        numbers = _measured(known, brief)
        if numbers and known is not event:
            numbers[-1] += f" (round {known['round']})"
        failed = [f"{len(event['failures'])} failed"] if event["failures"] else []
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
