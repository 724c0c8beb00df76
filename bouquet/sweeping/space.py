"""The settings that a scheme tries."""

import itertools
import math
from collections.abc import Mapping

from bouquet.core.config import Scalar
from bouquet.core.errors import BadInput
from bouquet.core.seeding import generator
from bouquet.strategies.registry import SCHEMES, find
from bouquet.sweeping.asked import Asked, Values

Setting = dict[str, Scalar]


def settings_of(asked: Asked) -> dict[str, list[Setting]]:
    """The settings that each scheme tries, as many for all.

    A scheme whose grid has fewer than ``trials`` tries them all; one whose grid has more tries
    some, drawn by the first seed.
    """
    grids = {one: _counting(asked, one) for one in asked.schemes}
    sizes = {one: _size(grid) for one, grid in grids.items()}
    if not asked.how.trials and len(set(sizes.values())) > 1:
        counts = ", ".join(f"{find(one).name} {size:.0f}" for one, size in sizes.items())
        raise BadInput(
            f"trials must be set, for the schemes' grids differ in size ({counts}): so many "
            "settings of each are tried, for all have the same budget."
        )
    return {
        one: _chosen(grid, asked.how.trials, asked.tune_seeds[0]) for one, grid in grids.items()
    }


def drawn_from(asked: Asked) -> dict[str, int]:
    """How many settings there are, for schemes that do not try them all."""
    found = {}
    for one, settings in settings_of(asked).items():
        size = _size(_counting(asked, one))
        if math.isfinite(size) and size > len(settings):
            found[find(one).name] = int(size)
    return found


def _counting(asked: Asked, scheme: str) -> dict[str, Values]:
    """The searched keys that count for a scheme: all but other schemes' own."""
    names = {find(one).name for one in asked.schemes} | SCHEMES.keys()
    others = names - {find(scheme).name}
    return {key: values for key, values in asked.grid.items() if key.split(".")[0] not in others}


def _size(grid: Mapping[str, Values]) -> float:
    return math.prod(map(_count, grid.values()))


def _count(values: Values) -> float:
    if isinstance(values, tuple):
        return len(values)
    low, high = values.low, values.high
    return high - low + 1 if isinstance(low, int) and isinstance(high, int) else math.inf


def _chosen(grid: Mapping[str, Values], trials: int, seed: int) -> list[Setting]:
    if not trials or _size(grid) <= trials:
        lists = [
            values if isinstance(values, tuple) else range(int(values.low), int(values.high) + 1)
            for values in grid.values()
        ]
        return [dict(zip(grid, one, strict=True)) for one in itertools.product(*lists)]
    found: list[Setting] = []
    number = 0
    while len(found) < trials:
        setting = {name: _drawn(name, values, seed, number) for name, values in grid.items()}
        number += 1
        if setting not in found:
            found.append(setting)
    return found


def _drawn(name: str, values: Values, seed: int, number: int) -> Scalar:
    """The value of a draw: by its key and number alone, so that schemes get the same ones."""
    luck = float(generator(seed, "sweep", name, number).random())
    if isinstance(values, tuple):
        return values[int(luck * len(values))]
    low, high = values.low, values.high
    if values.log:
        drawn = math.exp(math.log(low) + luck * math.log(high / low))
    else:
        drawn = low + luck * (high - low)
    if isinstance(low, int):
        return min(max(round(drawn), low), int(high))
    return min(max(float(f"{drawn:.6g}"), low), high)
