"""Lists of things that have a name: facts beside it, what it means below.

A terminal gets lines as long as it is wide; elsewhere they stay whole, for grep and its like.
"""

import textwrap
from collections.abc import Iterable
from itertools import groupby

from rich.text import Text

from bouquet.cli.catalogue import ListedKey
from bouquet.cli.display import out

INDENT = "    "


def entry(name: str, facts: str = "", *meanings: str) -> None:
    """Print one thing.

    Parameters
    ----------
    name : str
        What it goes by, never broken.
    facts : str
        What is said in a few words, on the same line.
    *meanings : str
        Sentences below it.
    """
    words = f"{name}  {facts}" if facts else name
    first, *more = _wrapped(words, 2 * INDENT)
    _print(Text.assemble((first[: len(name)], "bold"), first[len(name) :]))
    for line in [*more, *(line for one in meanings for line in _wrapped(INDENT + one, INDENT))]:
        _print(Text(line))


def fact(what: str, said: str, width: int = 10) -> None:
    """Print one thing known of the entry above."""
    start = f"{INDENT}{what:<{width}}"
    for line in _wrapped(start + said, " " * len(start)):
        _print(Text(line))


def keys(listed: Iterable[ListedKey]) -> None:
    """Print keys as ``-c`` takes them, with their defaults; a blank line between groups."""
    groups = groupby(listed, lambda one: one.name.rpartition(".")[0])
    for place, (_, group) in enumerate(groups):
        if place:
            out.print()
        for one in group:
            entry(f"{one.name}={one.default}", one.allowed, one.meaning)


def _wrapped(line: str, hang: str) -> list[str]:
    if not out.is_terminal:
        return [line]
    return textwrap.wrap(
        line,
        out.width,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _print(line: Text) -> None:
    out.print(line, soft_wrap=True)
