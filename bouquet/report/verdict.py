"""Who personalization helps and whom it hurts, and how sure that is.

Two models are compared on the same examples of one client, so only the examples count that
one of them gets right and the other wrong. If the models were equally good, each of those
would be a toss of a fair coin: that is McNemar's exact test. (Of a text, where a share of the
positions is right, the sign of the difference counts: the sign test, of which McNemar's is a
case.) Many clients give many tests, so p-values are adjusted by Holm's method: with 95%
confidence, none of the clients called helped or hurt is called so by chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

LEVEL = 0.05
_Z = 1.959963984540054  # of a normal variable, 95% are nearer to 0


@dataclass(frozen=True)
class Paired:
    """Two models on the same examples.

    Parameters
    ----------
    examples : int
        How many.
    better, worse : int
        Those the second model does better on than the first, and worse.
    change : float
        The second's accuracy less the first's.
    low, high : float
        A 95% confidence interval of it (Agresti and Min 2005).
    p : float
        McNemar's exact two-sided p-value.
    """

    examples: int
    better: int
    worse: int
    change: float
    low: float
    high: float
    p: float


def compare(first: Floats, second: Floats) -> Paired:
    """The second model against the first.

    Parameters
    ----------
    first, second : array of float
        Whether each example is right, 1 or 0 (of a text: at which share of its positions).
    """
    gaps = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    better, worse = int((gaps > 0).sum()), int((gaps < 0).sum())
    # Half an example more of each of the four kinds keeps the interval honest for few.
    size = len(gaps) + 2
    middle = gaps.sum() / size
    spread = math.sqrt(max(0.0, (gaps**2).sum() + 1 - size * middle**2)) / size
    return Paired(
        len(gaps),
        better,
        worse,
        float(gaps.mean()) if len(gaps) else 0.0,
        float(max(-1.0, middle - _Z * spread)),
        float(min(1.0, middle + _Z * spread)),
        mcnemar(better, worse),
    )


def mcnemar(better: int, worse: int) -> float:
    """How likely fair coins are to fall at least as unevenly, on either side."""
    tosses, few = better + worse, min(better, worse)
    tail = sum(math.comb(tosses, heads) for heads in range(few + 1))
    return min(1.0, 2 * tail / 2**tosses) if tosses else 1.0


def holm(ps: Sequence[float]) -> list[float]:
    """P-values adjusted for how many there are (Holm 1979)."""
    adjusted = [1.0] * len(ps)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda one: ps[one])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = largest
    return adjusted


def verdict(better: int, worse: int, p: float, adjusted: float) -> str:
    """What can be said of a client: helped or hurt, perhaps so, or ``no difference shown``."""
    if p > LEVEL:
        return "no difference shown"
    word = "helped" if better > worse else "hurt"
    return word if adjusted <= LEVEL else f"perhaps {word}"


def default_model(shared: Sequence[Floats], personal: Sequence[Floats]) -> str:
    """What to deploy for want of evidence about a client: what all clients together speak for.

    The personal model, which is what a scheme is for; the shared one where the clients' own
    tosses (one a client: which model is right more often) show it to be better, or where no
    client's two models differ.

    Parameters
    ----------
    shared, personal : sequence of array of float
        Of every client, whether each validation example is right.
    """
    pair = compare(*(np.array([one.mean() for one in each]) for each in (shared, personal)))
    shown_worse = pair.worse > pair.better and pair.p <= LEVEL
    return "shared" if shown_worse or not pair.better + pair.worse else "personal"


@dataclass(frozen=True)
class Advice:
    """Which model a client should use.

    Parameters
    ----------
    model : str
        Its name.
    p : float
        McNemar's exact p-value of it against its nearest rival, times the number of rivals.
    """

    model: str
    p: float

    @property
    def sure(self) -> bool:
        """Whether the examples show it to be best; else it is the default."""
        return self.p <= LEVEL


def advise(right: Mapping[str, Floats], default: str) -> Advice:
    """The default model, unless another is shown to be better on the same examples.

    Parameters
    ----------
    right : mapping
        By model, whether each validation example is right.
    default : str
        The model to use for want of evidence.
    """
    gaps = {one: compare(right[default], right[one]) for one in right if one != default}
    odds = {one: min(1.0, len(gaps) * gap.p) for one, gap in gaps.items()}  # Bonferroni
    better = [one for one in gaps if gaps[one].better > gaps[one].worse and odds[one] <= LEVEL]
    if better:
        chosen = min(better, key=lambda one: odds[one])
        return Advice(chosen, odds[chosen])
    rivals = [odds[one] if gaps[one].better < gaps[one].worse else 1.0 for one in gaps]
    return Advice(default, max(rivals, default=1.0))


def mean_interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """A 95% bootstrap interval of a mean over clients; the same values give the same one."""
    numbers = np.asarray(values, dtype=float)
    rng, size = np.random.default_rng(0), len(numbers)
    means = [numbers[rng.integers(size, size=size)].mean() for _ in range(draws)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
