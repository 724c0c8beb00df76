"""Reading values that come from outside, such as a message or a file.

Each function returns the value it is given, in the type it must have, or says what is wrong
with it. What is to be done about that (leave out a reply, refuse a message, skip a line) is up
to whoever reads.
"""

import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

# The largest whole number a message or a file's reader elsewhere can carry.
MOST = 2**63 - 1
# Letters of a client's id, or of what else goes into tables.
LONGEST_NAME = 500


class Malformed(ValueError):
    """A value that is not what it must be, in words without a full stop."""


def whole(value: object, what: str, low: int = 0, high: int = MOST) -> int:
    """A whole number in a range; true and false are none."""
    if type(value) is not int or not low <= value <= high:
        limit = f"of at least {low}" if high == MOST else f"from {low} to {high}"
        raise Malformed(f"{what} must be a whole number {limit}, not {reprlib.repr(value)}")
    return value


def real(value: object, what: str) -> float:
    """A number, which may be NaN or infinite."""
    if type(value) is float or (type(value) is int and abs(value) <= MOST):
        return float(value)
    raise Malformed(f"{what} must be a number, not {reprlib.repr(value)}")


def number(value: object, what: str, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number in a range."""
    found = real(value, what)
    if not math.isfinite(found) or not low <= found <= high:
        limit = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
        raise Malformed(f"{what} must be a finite number {limit}, not {found}")
    return found


def text(value: object, what: str) -> str:
    """Text that a file, a log and a file's name can hold."""
    if type(value) is not str or "\0" in value or value.encode("utf-8", "ignore").decode() != value:
        raise Malformed(f"{what} must be text, not {reprlib.repr(value)}")
    return value


def listed(
    values: object, what: str, one: Callable[[object, str], T], count: int | None = None
) -> list[T]:
    """A list, each of whose entries ``one`` reads, of a length where that is known."""
    if not isinstance(values, list):
        raise Malformed(f"{what} must be a list, not {reprlib.repr(values)}")
    if count is not None and len(values) != count:
        raise Malformed(f"{what} must have {count} entries, not {len(values)}")
    return [one(value, what) for value in values]


def ids(values: object, what: str) -> list[str]:
    """A list of clients' ids: none empty, none twice, none longer than a line."""
    found = listed(values, what, _name)
    if not all(found) or len(set(found)) != len(found):
        raise Malformed(f"{what} must be different ids, not {reprlib.repr(found)}")
    return found


def _name(value: object, what: str) -> str:
    found = text(value, what)
    if len(found) > LONGEST_NAME:
        raise Malformed(f"{what} must be shorter than {LONGEST_NAME} letters, not {len(found)}")
    return found


def names(found: Iterable[str], what: str, due: Sequence[str], perhaps: Sequence[str] = ()) -> None:
    """Refuse names that are missing, and names nobody knows."""
    there = set(found)
    missing = [name for name in due if name not in there]
    if missing:
        raise Malformed(f"{what} lack {', '.join(missing)}")
    unknown = sorted(map(reprlib.repr, there - {*due, *perhaps}))
    if unknown:
        raise Malformed(f"{what} have an unknown {unknown[0]}")
