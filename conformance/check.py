"""Compare anyone's iterates with a file of vectors: ``python check.py FILE OUTPUT``.

OUTPUT is JSON, ``{"name": ..., "iterates": [...]}``, with an object a round that has the quantities
of the file's ``expected`` in the same form. It needs Python alone, and stands alone.

Exit codes: 0 where all agrees, 1 where something deviates, 2 for a file that cannot be compared.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = "personalized-fl-conformance/1"
FOLDER = Path(__file__).with_name("vectors")
# What a file of vectors must say.
KEYS = (
    *("name", "scheme", "variant", "problem", "symbols", "initial", "clients", "weights"),
    *("rounds", "quantities", "tolerance", "expected"),
)


class CannotCompare(ValueError):
    """A file is not what it should be; the message is one sentence."""


@dataclass(frozen=True)
class Verdict:
    """How one quantity compares over all rounds.

    Parameters
    ----------
    quantity, meaning : str
        What is compared, and what it is.
    deviations : sequence of float
        Of each round: the largest difference of an entry, relative to the largest entry of what is
        expected there. Infinite where there is no number.
    places : sequence of str
        Of each round: where that is.
    tolerance : float
        The largest deviation that is none.
    """

    quantity: str
    meaning: str
    deviations: Sequence[float]
    places: Sequence[str]
    tolerance: float

    @property
    def first(self) -> int | None:
        """The first round that deviates, from 1."""
        wrong = (n for n, one in enumerate(self.deviations, 1) if not one <= self.tolerance)
        return next(wrong, None)

    @property
    def row(self) -> tuple[str, ...]:
        """A line of the table."""
        right = sum(one <= self.tolerance for one in self.deviations)
        place = f"round {self.first}: {self.places[self.first - 1]}" if self.first else "-"
        agree = f"{right} of {len(self.deviations)}"
        at_first = f"{self.deviations[(self.first or 1) - 1]:.1e}" if self.first else "-"
        return self.quantity, agree, place, at_first, f"{max(self.deviations):.1e}"


def vectors() -> list[Path]:
    """The files there are."""
    return sorted(FOLDER.glob("*.json"))


def find(name: str) -> Path:
    """A file by its path, or one of ours by its name."""
    for path in (Path(name), FOLDER / f"{name}.json"):
        if path.is_file():
            return path
    some = ", ".join(path.stem for path in vectors()[:3])
    raise CannotCompare(f"There is no file {name!r}, nor vectors of that name, such as {some}.")


def read(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        told = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CannotCompare(f"Cannot read {path}: {error.strerror}.") from None
    except ValueError:
        raise CannotCompare(f"{path} is not JSON.") from None
    if not isinstance(told, dict):
        raise CannotCompare(f"{path} must be a JSON object.")
    return told


def read_vector(path: Path) -> dict[str, Any]:
    """A file of vectors."""
    told = read(path)
    if told.get("format") != FORMAT:
        raise CannotCompare(f"{path} is no file of vectors: its format is not {FORMAT!r}.")
    missing = [name for name in KEYS if name not in told]
    if missing:
        raise CannotCompare(f"{path} is not whole: it has no {missing[0]!r}.")
    return told


def compare(vector: Mapping[str, Any], output: Mapping[str, Any]) -> list[Verdict]:
    """How every quantity of some output compares with the vectors.

    Parameters
    ----------
    vector : mapping
        What the file of vectors says.
    output : mapping
        ``name`` and ``iterates``, as the guide has it.
    """
    name, expected, given = vector["name"], vector["expected"], output.get("iterates")
    if output.get("name") != name:
        raise CannotCompare(f"The output's name must be {name!r}, not {output.get('name')!r}.")
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise CannotCompare("The output's iterates must be a list with an object for each round.")
    if len(given) != len(expected):
        raise CannotCompare(f"The output has {len(given)} rounds; {name} has {len(expected)}.")
    strange = sorted({one for round_ in given for one in round_} - set(vector["quantities"]))
    if strange:
        known = ", ".join(vector["quantities"])
        raise CannotCompare(f"The output has {strange[0]!r}; the quantities of {name} are {known}.")
    verdicts = []
    for quantity, meaning in vector["quantities"].items():
        found = [
            _deviation(want[quantity], got.get(quantity))
            for want, got in zip(expected, given, strict=True)
        ]
        deviations, places = zip(*found, strict=True)
        verdicts.append(Verdict(quantity, meaning, deviations, places, vector["tolerance"]))
    return verdicts


def _deviation(want: Any, got: Any) -> tuple[float, str]:
    """The largest deviation, and where it is."""
    if got is None:
        return math.inf, "missing"
    wanted, given = dict(_numbers(want, ())), dict(_numbers(got, ()))
    if wanted.keys() != given.keys():
        some = min(wanted.keys() ^ given.keys())
        which = "missing" if some in wanted else "unexpected"
        return math.inf, f"{_said(some)} is {which}"
    scale = max((abs(one) for one in wanted.values()), default=0.0) or 1.0
    apart = {place: abs(one - given[place]) / scale for place, one in wanted.items()}
    finite = {place: one if one == one else math.inf for place, one in apart.items()}
    worst = max(finite, key=lambda place: finite[place])
    return finite[worst], _said(worst)


Place = tuple[str, ...]


def _numbers(value: Any, place: Place) -> Iterator[tuple[Place, float]]:
    """Every number and where it is."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _numbers(one, (*place, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _numbers(one, (*place, f"[{number}]"))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, float(value)
    else:
        raise CannotCompare(f"The output has {value!r} where a number should be.")


def _said(place: Place) -> str:
    return " ".join(place).replace(" [", "[") or "the number"


def table(verdicts: Sequence[Verdict]) -> str:
    """What was found, for people."""
    head = ("quantity", "rounds that agree", "first deviation", "by", "largest")
    rows = [head, *(one.row for one in verdicts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(f"{v:<{w}}" for v, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def agrees(verdicts: Sequence[Verdict]) -> bool:
    """Whether nothing deviates."""
    return all(one.first is None for one in verdicts)


def main(words: Sequence[str]) -> int:
    """The command; returns its exit code."""
    if len(words) != 2:
        print("usage: python check.py FILE OUTPUT", file=sys.stderr)
        return 2
    try:
        verdicts = compare(read_vector(find(words[0])), read(Path(words[1])))
    except CannotCompare as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    print(table(verdicts))
    return 0 if agrees(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
