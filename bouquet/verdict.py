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


def advise(validation: Mapping[str, float]) -> str:
    """The model with the best accuracy on validation data; of equals, the first."""
    return max(validation, key=lambda name: validation[name])


def mean_interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """A 95% bootstrap interval of a mean over clients; the same values give the same one."""
    numbers = np.asarray(values, dtype=float)
    rng, size = np.random.default_rng(0), len(numbers)
    means = [numbers[rng.integers(size, size=size)].mean() for _ in range(draws)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
