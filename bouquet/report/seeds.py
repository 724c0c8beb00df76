"""A scheme's runs with several seeds as one result: means, and how far the seeds lie apart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

from bouquet.core.measure import in_summary

Summary = Mapping[str, Any]


class Spread(NamedTuple):
    """A mean over seeds, and their standard deviation where there are several."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Result:
    """How well a scheme does, over its seeds.

    Parameters
    ----------
    scheme : str
        Its name.
    seeds : int
        How many runs it has.
    shared, personal : Spread
        Of the clients' mean with the shared model, and with their own.
    worst : Spread
        Of the client whose own model does worst.
    helped, hurt : Spread
        Of the clients whose own model does better, or worse, than the shared one.
    """

    scheme: str
    seeds: int
    shared: Spread
    personal: Spread
    worst: Spread
    helped: Spread
    hurt: Spread


def over_seeds(summaries: Sequence[Summary]) -> list[Result]:
    """A result for each scheme, in the order of their first runs."""
    schemes: dict[str, list[Summary]] = {}
    for one in summaries:
        schemes.setdefault(str(one["scheme"]), []).append(one)
    return [_result(scheme, alike) for scheme, alike in schemes.items()]


def _result(scheme: str, runs: Sequence[Summary]) -> Result:
    shared, personal, worst = zip(*map(outcome, runs), strict=True)
    counts = [spread([run[name] for run in runs]) for name in ("helped", "hurt")]
    return Result(scheme, len(runs), spread(shared), spread(personal), spread(worst), *counts)


def spread(values: Sequence[float]) -> Spread:
    """The mean and the standard deviation of at least one value."""
    finite = all(map(math.isfinite, values))
    return Spread(mean(values), stdev(values) if finite and len(values) > 1 else None)


def outcome(summary: Summary) -> tuple[float, float, float]:
    """Of the shared model, of the personal ones, and of the worst of these."""
    what = in_summary(summary)
    shared, personal = (summary[whose].get(what.name, {}) for whose in ("shared", "personal"))
    return _number(shared.get("mean")), _number(personal.get("mean")), _number(what.worst(personal))


def _number(told: float | None) -> float:
    """What a summary says; of a number that is not finite it says nothing."""
    return math.nan if told is None else float(told)
