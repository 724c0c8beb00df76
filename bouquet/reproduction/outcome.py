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
# Summaries of an entry's runs, one a seed.
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
        How many there are.
    verdict : str
        ``reproduced``: within two standard deviations, or one point (of a loss: a tenth).
        ``same order``: not, but wherever the paper has two entries more than a point apart, ours
        are in the same order. ``not reproduced`` otherwise.
    """

    entry: str
    label: str
    measure: str
    published: float
    mean: float
    std: float
    seeds: int
    verdict: str = ""

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
        wrong way, or ``no``.
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
        Number(entry.name, entry.label, measure, value, *_ours(summaries[entry.name], measure))
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
    return found.mean, math.nan if found.std is None else found.std, len(summaries)


def _spread(summaries: Sequence[Mapping[str, Any]], measure: str) -> Spread:
    return spread([value(one, measure) for one in summaries])


def _verdict(one: Number, others: Sequence[Number]) -> str:
    point = 1.0 if is_percent(one.measure) else 0.1 * abs(one.published)
    near = max(2 * one.std, point) if math.isfinite(one.std) else point
    if abs(one.difference) <= near:
        return REPRODUCED
    pairs = [twin for twin in others if twin.measure == one.measure and twin is not one]
    apart = [twin for twin in pairs if abs(twin.published - one.published) > point]
    same = all((twin.published > one.published) == (twin.mean > one.mean) for twin in apart)
    return ORDER if apart and same and math.isfinite(one.mean) else NOT


def _held(claim: Claim, entries: Sequence[Entry], summaries: Summaries) -> Held:
    label = {entry.name: entry.label for entry in entries}
    found = [_spread(summaries[name], claim.by) for name in claim.better]
    sign = -1 if is_better_low(claim.by) else 1
    worst = "yes"
    for (one, first), (other, second) in pairwise(zip(claim.better, found, strict=True)):
        gap = sign * (first.mean - second.mean)
        if gap >= 0 or math.isclose(first.mean, second.mean, rel_tol=TIE):
            continue
        error = _standard_error(summaries[one], summaries[other], claim.by)
        worst = "no" if not -gap <= 2 * error or worst == "no" else "within noise"
    numbers = ", ".join(
        f"{label[name]} {one.mean:.2f}" for name, one in zip(claim.better, found, strict=True)
    )
    return Held(claim.says, worst, numbers)


def _standard_error(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], measure: str
) -> float:
    """Of the mean difference over seeds, which have the same clients and data: paired."""
    pairs = zip(one, other, strict=False)
    gaps = spread([value(a, measure) - value(b, measure) for a, b in pairs])
    return 0.0 if gaps.std is None else gaps.std / math.sqrt(len(one))
