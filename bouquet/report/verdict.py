"""Who personalization helps and whom it hurts, and how sure that is.

Two models are compared on the same examples of one client, so only the examples count that
one of them gets right and the other wrong. If the models were equally good, each of those
would be a toss of a fair coin: that is McNemar's exact test. (Of a text, where a share of the
positions is right, the sign of the difference counts: the sign test, of which McNemar's is a
case.) Where each example has a loss, or another number, the mean of the differences is compared
with what it would be had each difference come with either sign, as of two models that are equally
good: the sign-flip test (Fisher 1935, Pitman 1937), of which McNemar's is the case where all
differences are of one size.

Many clients give many tests, so p-values are adjusted by Holm's method: with 95% confidence, none
of the clients called helped or hurt is called so by chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bouquet.core.measure import ACCURATE, Measure

Floats = NDArray[np.floating]

LEVEL = 0.05
GRID = 2**16  # steps from the least to the largest sum of differences; see sign_flip
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
        How much better the second is in the mean: its accuracy less the first's.
    low, high : float
        A 95% confidence interval of it (Agresti and Min 2005; of losses, Student's).
    p : float
        The exact two-sided p-value: McNemar's, or of losses the sign-flip test's.
    leans : float
        Above 0 where the second is the better one, below 0 where the first is.
    """

    examples: int
    better: int
    worse: int
    change: float
    low: float
    high: float
    p: float
    leans: float


def compare(first: Floats, second: Floats, measure: Measure = ACCURATE) -> Paired:
    """The second model against the first.

    Parameters
    ----------
    first, second : array of float
        Whether each example is right, 1 or 0 (of a text: at which share of its positions), or
        another number of each example.
    measure : Measure
        What the numbers are.
    """
    gaps = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    gaps = -gaps if measure.lower_is_better else gaps
    better, worse = int((gaps > 0).sum()), int((gaps < 0).sum())
    if measure != ACCURATE:
        low, high = student_interval(gaps)
        p, change = sign_flip(gaps), float(gaps.mean()) if len(gaps) else 0.0
        return Paired(len(gaps), better, worse, change, low, high, p, change)
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
        better - worse,
    )


def mcnemar(better: int, worse: int) -> float:
    """How likely fair coins are to fall at least as unevenly, on either side."""
    tosses, few = better + worse, min(better, worse)
    tail = sum(math.comb(tosses, heads) for heads in range(few + 1))
    return min(1.0, 2 * tail / 2**tosses) if tosses else 1.0


def sign_flip(gaps: Floats) -> float:
    """How likely differences with random signs are to have a mean at least as far from 0.

    Exact, and the same every time: the distribution over all signs is built up difference by
    difference (Pagano and Tritchler 1983) on a grid, to which the differences are rounded.
    """
    sizes = np.abs(gaps)
    total = sizes.sum()
    if not np.isfinite(total) or not total:
        return 1.0
    steps = np.rint(gaps * (GRID / total)).astype(np.int64)
    # By chance, each step is taken or not; the smallest come first, for then there is less to add.
    chances = np.ones(1)
    for step in sorted(np.abs(steps[steps != 0]).tolist()):
        taken = np.zeros(len(chances) + step)
        taken[: len(chances)] = chances / 2
        taken[step:] += chances / 2
        chances = taken
    least = min(int(steps[steps > 0].sum()), int(-steps[steps < 0].sum()))
    return min(1.0, 2 * float(chances[: least + 1].sum()))


def student_interval(gaps: Floats) -> tuple[float, float]:
    """A 95% confidence interval of a mean; without end where one example is all there is."""
    if len(gaps) < 2:
        return -math.inf, math.inf
    from scipy.stats import t

    middle = float(gaps.mean())
    half = float(t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / math.sqrt(len(gaps)))
    return middle - half, middle + half


def holm(ps: Sequence[float]) -> list[float]:
    """P-values adjusted for how many there are (Holm 1979)."""
    adjusted = [1.0] * len(ps)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda one: ps[one])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = largest
    return adjusted


def verdict(leans: float, p: float, adjusted: float) -> str:
    """What can be said of a client: helped or hurt, perhaps so, or ``no difference shown``."""
    if p > LEVEL:
        return "no difference shown"
    word = "helped" if leans > 0 else "hurt"
    return word if adjusted <= LEVEL else f"perhaps {word}"


def default_model(
    shared: Sequence[Floats], personal: Sequence[Floats], measure: Measure = ACCURATE
) -> str:
    """What to deploy for want of evidence about a client: what all clients together speak for.

    The personal model, which is what a scheme is for; the shared one where the clients' own
    tosses (one a client: which model does better in the mean) show it to be better, or where no
    client's two models differ.

    Parameters
    ----------
    shared, personal : sequence of array of float
        Of every client, whether each validation example is right, or another number of it.
    measure : Measure
        What the numbers are.
    """
    sign = -1 if measure.lower_is_better else 1
    # Clients' losses may be of very different size: only the sign of each difference counts.
    first, second = (np.array([sign * one.mean() for one in each]) for each in (shared, personal))
    pair = compare(first, second)
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
        The exact p-value of it against its nearest rival, times the number of rivals.
    """

    model: str
    p: float

    @property
    def sure(self) -> bool:
        """Whether the examples show it to be best; else it is the default."""
        return self.p <= LEVEL


def advise(right: Mapping[str, Floats], default: str, measure: Measure = ACCURATE) -> Advice:
    """The default model, unless another is shown to be better on the same examples.

    Parameters
    ----------
    right : mapping
        By model, whether each validation example is right, or another number of it.
    default : str
        The model to use for want of evidence.
    measure : Measure
        What the numbers are.
    """
    gaps = {one: compare(right[default], right[one], measure) for one in right if one != default}
    odds = {one: min(1.0, len(gaps) * gap.p) for one, gap in gaps.items()}  # Bonferroni
    better = [one for one in gaps if gaps[one].leans > 0 and odds[one] <= LEVEL]
    if better:
        chosen = min(better, key=lambda one: odds[one])
        return Advice(chosen, odds[chosen])
    rivals = [odds[one] if gaps[one].leans < 0 else 1.0 for one in gaps]
    return Advice(default, max(rivals, default=1.0))


def mean_interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """A 95% bootstrap interval of a mean over clients; the same values give the same one."""
    numbers = np.asarray(values, dtype=float)
    rng, size = np.random.default_rng(0), len(numbers)
    means = [numbers[rng.integers(size, size=size)].mean() for _ in range(draws)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
