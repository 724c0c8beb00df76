"""Numbers with as many digits as their uncertainty supports."""

import math

NONE = "–"


def decimals(spread: float) -> int:
    """How many places after the point a number with an uncertainty has; below 0, before it.

    The uncertainty's first digit is the last that counts, or its second one where the first is a
    1: rounded to one digit, 0.014 would lose a third of itself.
    """
    digits, _, power = f"{spread:.1e}".partition("e")
    return -int(power) + digits.startswith("1")


def plain(value: float | None) -> str:
    """A number of unknown uncertainty: three digits, or all before the point.

    Shares have three places, as the thousandth of a small one is no better known.
    """
    if value is None or not math.isfinite(value):
        return NONE
    whole = float(value).is_integer() or abs(value) >= 100
    share = 0.01 <= abs(value) < 1
    return f"{value:.0f}" if whole else f"{value:.3f}" if share else f"{value:#.3g}".rstrip(".")


def with_spread(value: float | None, spread: float | None) -> str:
    """``0.923 ± 0.004``; without an uncertainty, :func:`plain`.

    Parameters
    ----------
    value : float or None
        The number.
    spread : float or None
        Its uncertainty, such as a standard deviation; not below 0.
    """
    if spread is None or not math.isfinite(spread) or value is None or not math.isfinite(value):
        return plain(value)
    if not spread:
        return f"{plain(value)} ± 0"
    places = decimals(spread)
    return f"{_at(value, places)} ± {_at(spread, places)}"


def with_interval(value: float, low: float, high: float) -> str:
    """``+0.37 (+0.18 to +0.56)``, a change and its confidence interval.

    Half the interval's width is the uncertainty. Of an interval without end, or of no width,
    there is none.
    """
    half = (high - low) / 2
    if not math.isfinite(value):
        return NONE
    if not math.isfinite(half):
        return _signed(plain(value))
    if not half:
        return f"{_signed(plain(value))} ({_signed(plain(low))} to {_signed(plain(high))})"
    # An end that is near 0 has a digit more: which side of it it is on must show.
    places = decimals(half) + any(one and not round(one, decimals(half)) for one in (low, high))
    middle, *ends = (_signed(_at(one, places)) for one in (value, low, high))
    return f"{middle} ({ends[0]} to {ends[1]})"


def _at(value: float, places: int) -> str:
    return f"{round(value, places) + 0.0:.{max(0, places)}f}"  # -0.0 + 0.0 is 0.0


def _signed(text: str) -> str:
    """With a sign, unless it is 0."""
    return text if text.startswith("-") or not text.strip("0.") else f"+{text}"
