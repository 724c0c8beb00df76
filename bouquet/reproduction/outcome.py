"""What came out, beside what was published: numbers, claims, and how sure they are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from bouquet.core.config import Scalar
from bouquet.report.seeds import Spread, spread
from bouquet.reproduction.recipe import BEST, Claim, Entry, Recipe

TIE = 1e-6  # of their size: what rounding leaves between two entries that compute the same
REPRODUCED, ORDER, NOT = "reproduced", "same order", "not reproduced"
UNKNOWN = "not known"
# Summaries of an entry's runs, one a seed; empty of one that diverged.
Summaries = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Number:
    """A published number and ours.

    Parameters
    ----------
    entry, label : str
        Whose it is.
    measure : str
        What it is.
    published : float
        The paper's.
    mean, std : float
        Ours over seeds; the deviation is NaN where there is one seed.
    seeds : int
        How many came to an end.
    verdict : str
        ``reproduced``: within two standard deviations, or one point (of a loss: a tenth).
        ``same order``: not, but wherever the paper has two entries more than a point apart, ours
        are in the same order. ``not reproduced`` otherwise, and wherever a seed diverged.
    diverged : int
        How many seeds never came to an end; they are in no mean.
    """

    entry: str
    label: str
    measure: str
    published: float
    mean: float
    std: float
    seeds: int
    verdict: str = ""
    diverged: int = 0

    @property
    def difference(self) -> float:
        """Ours less the paper's."""
        return self.mean - self.published

    @property
    def error(self) -> float:
        """The standard error of our mean, and so of the difference; NaN where there is one seed."""
        return self.std / math.sqrt(self.seeds) if self.seeds > 1 else math.nan

    @property
    def words(self) -> tuple[str, str, str]:
        """The paper's number, ours ± their deviation, and the difference ± its standard error."""
        digits = 2 if is_percent(self.measure) else 4
        ours = f"{self.mean:.{digits}f}"
        difference = f"{self.difference:+.{digits}f}"
        if math.isfinite(self.error):
            ours += f" ± {self.std:.{digits}f}"
            difference += f" ± {self.error:.{digits}f}"
        ours += _out(self.diverged, self.seeds + self.diverged)
        return f"{self.published:g}", ours, difference


@dataclass(frozen=True)
class Held:
    """What became of a claim.

    Parameters
    ----------
    says : str
        The claim.
    holds : str
        ``yes``, ``within noise`` where two entries are less than two standard errors apart the
        wrong way, ``no``, or ``not known`` where an entry diverged with every seed.
    numbers : str
        Ours, in the claimed order.
    """

    says: str
    holds: str
    numbers: str


@dataclass(frozen=True)
class Choice:
    """The setting of an entry that does best on validation data.

    Parameters
    ----------
    entry, label : str
        Whose it is.
    setting : mapping
        The keys that were tried, with the values that were chosen.
    tried, diverged : int
        How many settings there were, and how many of them never came to an end.
    measure : str
        What they were compared by.
    value, loss : float
        The chosen one's on validation data, over the trials' seeds; an accuracy in percent.
    """

    entry: str
    label: str
    setting: Mapping[str, Scalar]
    tried: int
    diverged: int
    measure: str
    value: float
    loss: float

    @property
    def words(self) -> str:
        """The setting as people write it."""
        return " ".join(f"{name}={value}" for name, value in self.setting.items())

    @property
    def told(self) -> str:
        """How it was chosen."""
        out = f", {self.diverged} of which diverged" * bool(self.diverged)
        digits = 2 if is_percent(self.measure) else 4
        number = f"{self.measure} {self.value:.{digits}f} on validation data"
        return f"{self.words} (best of {self.tried}{out}: {number})"


@dataclass(frozen=True)
class Outcome:
    """An experiment's results.

    Parameters
    ----------
    recipe : str
        Which.
    numbers : tuple of Number
        Beside the paper's.
    claims : tuple of Held
        What the paper says of them.
    about : mapping
        Commit, machine, hours, seeds.
    choices : tuple of Choice
        What was chosen on validation data, of entries that had a choice.
    """

    recipe: str
    numbers: tuple[Number, ...]
    claims: tuple[Held, ...]
    about: Mapping[str, Any]
    choices: tuple[Choice, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As ``result.json`` has it."""
        return asdict(self)

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "Outcome":
        """As it was before it was written."""
        numbers = tuple(Number(**one) for one in told["numbers"])
        claims = tuple(Held(**one) for one in told["claims"])
        choices = tuple(Choice(**one) for one in told.get("choices", ()))
        return cls(told["recipe"], numbers, claims, told["about"], choices)


def outcome(
    recipe: Recipe,
    summaries: Summaries,
    about: Mapping[str, Any],
    choices: Sequence[Choice] = (),
) -> Outcome:
    """Put a recipe's runs beside its paper."""
    found = [
        Number(
            entry.name,
            entry.label,
            measure,
            value,
            *_ours(summaries[entry.name], measure),
            diverged=_diverged(summaries[entry.name]),
        )
        for entry in recipe.entries
        for measure, value in entry.published.items()
    ]
    claims = tuple(_held(claim, recipe.entries, summaries) for claim in recipe.claims)
    return Outcome(recipe.name, judged(found), claims, about, tuple(choices))


def judged(numbers: Sequence[Number]) -> tuple[Number, ...]:
    """Numbers with their verdicts."""
    return tuple(Number(**(asdict(one) | {"verdict": _verdict(one, numbers)})) for one in numbers)


def value(summary: Mapping[str, Any], measure: str) -> float:
    """What a summary says of a measure, accuracies in percent; NaN where it says nothing."""
    found: Any = summary
    for word in _place(measure):
        found = found.get(word) if isinstance(found, Mapping) else None
    if not isinstance(found, (int, float)):
        return math.nan
    return 100 * found if is_percent(measure) else float(found)


def _place(measure: str) -> list[str]:
    """Where a measure is in a summary; the best of the rounds is called as in their log."""
    if not measure.startswith(BEST):
        return measure.split(".")
    name = measure.removeprefix(BEST).removesuffix(".mean").replace(".", "_")
    return ["best", name]


def is_percent(measure: str) -> bool:
    """Whether a measure is told in percent."""
    return "accuracy" in measure


def is_better_low(measure: str) -> bool:
    """Whether the smaller number is the better one."""
    return "loss" in measure


def _ours(summaries: Sequence[Mapping[str, Any]], measure: str) -> tuple[float, float, int]:
    found = _spread(summaries, measure)
    ended = len(summaries) - _diverged(summaries)
    return found.mean, math.nan if found.std is None else found.std, ended


def _spread(summaries: Sequence[Mapping[str, Any]], measure: str) -> Spread:
    values = [value(one, measure) for one in summaries if one]
    return spread(values) if values else Spread(math.nan, None)


def _diverged(summaries: Sequence[Mapping[str, Any]]) -> int:
    return sum(not one for one in summaries)


def _out(diverged: int, seeds: int) -> str:
    return f" ({diverged} of {seeds} seeds diverged)" * bool(diverged)


def _verdict(one: Number, others: Sequence[Number]) -> str:
    point = 1.0 if is_percent(one.measure) else 0.1 * abs(one.published)
    near = max(2 * one.std, point) if math.isfinite(one.std) else point
    if one.diverged:
        return NOT
    if abs(one.difference) <= near:
        return REPRODUCED
    known = [twin for twin in others if math.isfinite(twin.mean)]
    pairs = [twin for twin in known if twin.measure == one.measure and twin is not one]
    apart = [twin for twin in pairs if abs(twin.published - one.published) > point]
    same = all((twin.published > one.published) == (twin.mean > one.mean) for twin in apart)
    return ORDER if apart and same and math.isfinite(one.mean) else NOT


def _held(claim: Claim, entries: Sequence[Entry], summaries: Summaries) -> Held:
    label = {entry.name: entry.label for entry in entries}
    places = list(zip(claim.better, claim.by, strict=True))
    found = [_spread(summaries[name], measure) for name, measure in places]
    sign = -1 if is_better_low(claim.by[0]) else 1
    worst = "yes"
    for (one, first), (other, second) in pairwise(zip(places, found, strict=True)):
        gaps = _gaps(summaries, one, other)
        if not gaps:
            worst = UNKNOWN
            break
        gap = spread([sign * one for one in gaps])
        if gap.mean >= 0 or abs(gap.mean) <= TIE * max(abs(first.mean), abs(second.mean)):
            continue
        error = 0.0 if gap.std is None else gap.std / math.sqrt(len(gaps))
        worst = "no" if not -gap.mean <= 2 * error or worst == "no" else "within noise"
    itself = len(set(claim.by)) > 1
    numbers = ", ".join(
        f"{label[name]}{f', {measure}' * itself} {one.mean:.2f}"
        f"{_out(_diverged(summaries[name]), len(summaries[name]))}"
        for (name, measure), one in zip(places, found, strict=True)
    )
    return Held(claim.says, worst, numbers)


def _gaps(summaries: Summaries, one: tuple[str, str], other: tuple[str, str]) -> list[float]:
    """The differences over the seeds that both have, whose clients and data are the same."""
    (name, measure), (twin, its) = one, other
    both = zip(summaries[name], summaries[twin], strict=False)
    return [value(a, measure) - value(b, its) for a, b in both if a and b]
