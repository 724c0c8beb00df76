"""Which colour a scheme has, on every page and in every figure.

There are more schemes than colours people can tell apart: schemes that share one are told apart by
how their lines are broken (:func:`dashes`), as are several configurations of one scheme.
"""

import zlib
from collections import Counter
from collections.abc import Sequence

# On light pages and on dark ones. People who confuse red and green can tell them apart, and all
# stand out from the page (tests/unit/test_colours.py measures both).
PALETTE = (
    ("#0072b2", "#5db3ec"),  # blue
    ("#c84e00", "#f58a4b"),  # vermilion
    ("#00805e", "#3cc79b"),  # green
    ("#9c2f80", "#cc66b2"),  # purple
    ("#b38700", "#f5d44f"),  # yellow
    ("#4527a0", "#8070f0"),  # violet
    ("#5c2a1e", "#c95f52"),  # brown
    ("#2b97d6", "#c4e8ff"),  # sky
)
# A place in this list is a colour, so it only grows at its end. The schemes most often compared
# come first, each with a colour of its own.
SCHEMES = (
    *("fedavg", "local", "apfl", "ditto", "finetune", "pfedme", "fedrep", "perfedavg"),
    *("fedprox", "centralized", "fedper", "fedalt", "fedsim", "fedu", "mr-mtl", "scaffold"),
    *("ifca", "lg-fedavg", "fedbn", "fedbabu", "fedrod", "plsgd", "fedala", "afl"),
    *("dfedu", "mocha", "minibatch", "tune"),
)
# Lengths of strokes and gaps, in points; nothing is a whole line.
DASHES: tuple[tuple[int, ...], ...] = ((), (6, 3), (2, 2), (8, 3, 2, 3))


def colour_of(scheme: str, *, dark: bool = False) -> str:
    """A scheme's colour, always the same.

    Parameters
    ----------
    scheme : str
        Its name, a pipeline's stages, or any other name.
    dark : bool
        Whether it is for a dark page.
    """
    return PALETTE[_place(scheme)][dark]


def dashes(schemes: Sequence[str]) -> list[int]:
    """Which of :data:`DASHES` each of several lines has, so that lines of one colour differ."""
    before: Counter[int] = Counter()
    found = []
    for place in map(_place, schemes):
        found.append(before[place] % len(DASHES))
        before[place] += 1
    return found


def _place(scheme: str) -> int:
    known = scheme in SCHEMES
    return (SCHEMES.index(scheme) if known else zlib.crc32(scheme.encode())) % len(PALETTE)
