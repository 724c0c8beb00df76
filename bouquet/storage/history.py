"""Every client's numbers over the rounds, in the portions a web page can show."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.storage.runs import number

# What personalization is about, where a scheme has it.
PERSONAL = ("alpha", "personal_norm", "drift")
PERCENTILES = (10, 25, 50, 75, 90)


@dataclass(frozen=True)
class Line:
    """A line of ``history.jsonl``.

    Parameters
    ----------
    round : int
        The round.
    clients : tuple of str
        Those that were evaluated.
    columns : dict
        A number for each of them by measure; NaN where it is unknown.
    """

    round: int
    clients: tuple[str, ...]
    columns: dict[str, NDArray[np.float64]]


def parse_line(text: str) -> Line | None:
    """A line of the history, or nothing where it is broken or half-written."""
    try:
        told = json.loads(text)
        round_, clients = told.pop("round"), told.pop("clients")
        told.pop("version", None)
        columns = {name: np.array(values, np.float64) for name, values in told.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if not isinstance(round_, int) or not isinstance(clients, list):
        return None
    if not all(isinstance(one, str) for one in clients):
        return None
    if any(column.shape != (len(clients),) for column in columns.values()):
        return None
    # The same names in every line: one of each will do.
    return Line(round_, tuple(map(sys.intern, clients)), columns)


def spreads(lines: Sequence[Line]) -> dict[str, dict[str, list[float]]]:
    """Percentiles over clients of what is personal, for the measures there are."""
    found: dict[str, dict[str, list[float]]] = {}
    for name in PERSONAL:
        for line in lines:
            column = line.columns.get(name, np.empty(0))
            known = column[np.isfinite(column)]
            if len(known):
                spread = found.setdefault(name, {"round": []})
                spread["round"].append(line.round)
                for share, value in zip(
                    PERCENTILES, np.percentile(known, PERCENTILES), strict=True
                ):
                    spread.setdefault(f"p{share}", []).append(float(value))
    return found


def of_client(lines: Sequence[Line], client: str) -> dict[str, list[Any]]:
    """One client's measures over the rounds in which it was evaluated."""
    there = [(line, line.clients.index(client)) for line in lines if client in line.clients]
    names = dict.fromkeys(name for line, _ in there for name in line.columns)
    course: dict[str, list[Any]] = {"round": [line.round for line, _ in there]}
    for name in names:
        course[name] = [
            number(float(line.columns[name][place])) if name in line.columns else None
            for line, place in there
        ]
    return course


def latest(lines: Sequence[Line]) -> dict[str, dict[str, float | None]]:
    """Every client's last numbers."""
    found: dict[str, dict[str, float | None]] = {}
    everybody = set().union(*(line.clients for line in lines))
    for line in reversed(lines):
        if len(found) == len(everybody):
            break
        for place, client in enumerate(line.clients):
            if client not in found:
                numbers = {n: number(float(column[place])) for n, column in line.columns.items()}
                found[client] = numbers
    return found
