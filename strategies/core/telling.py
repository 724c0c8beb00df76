"""A run's rounds in words, for terminals and logs."""

from collections.abc import Callable
from typing import Any

Event = dict[str, Any]


def telling() -> Callable[[Event], str]:
    """A function that is told of a run's rounds, and says how each went.

    A round without evaluation shows the numbers last known, and the round they are of.
    """
    known: Event = {"metrics": {}}

    def words(event: Event) -> str:
        nonlocal known
        known = event if event["metrics"] else known
        told = [f"{event['seconds']:.2f} s/round", *_measured(known["metrics"])]
        if known["metrics"] and known is not event:
            told[-1] += f" (round {known['round']})"
        if event["failures"]:
            told.append(f"{len(event['failures'])} failed")
        return "  ".join(told)

    return words


def _measured(metrics: dict[str, float]) -> list[str]:
    what = "accuracy" if "shared_accuracy" in metrics else "loss"
    names = [f"{whose}_{what}" for whose in ("shared", "personal")]
    return [f"{n.replace('_', ' ')} {short(metrics[n])}" for n in names if n in metrics]


def short(value: float) -> str:
    """A number as people read it."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3e}"
