"""The papers' experiments on a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from bouquet.cli.display import out
from bouquet.reproduction.outcome import REPRODUCED, Outcome
from bouquet.reproduction.recipe import PAPERS, Recipe

COLOURS = {REPRODUCED: "green", "yes": "green", "no": "red"}


def show_recipes(recipes: Sequence[Recipe], committed: Mapping[str, str]) -> None:
    """Print the experiments there are, the cheapest first.

    Parameters
    ----------
    recipes : sequence of Recipe
        All of them.
    committed : mapping of str to str
        Those whose results are there already, with the marks of what these were made from.
    """
    table = Table("recipe", "paper", "what it is", "about", "results", header_style="bold")
    for one in sorted(recipes, key=lambda one: (one.total_minutes, one.name)):
        what = f"{one.place}: {one.title}" + f" [dim]({one.fraction})" * bool(one.fraction)
        there = _there(one, committed.get(one.name))
        table.add_row(one.name, one.paper, what, _long(one.total_minutes), there)
    out.print(table)
    for name, words in PAPERS.items():
        if any(one.paper == name for one in recipes):
            out.print(f"{name}: {words.replace('*', '')}", highlight=False, soft_wrap=True)


def show_outcome(recipe: Recipe, found: Outcome, place: Path) -> None:
    """Print what came out beside what was published."""
    if found.numbers:
        table = Table("", "measure", "paper", "ours", "difference", "", header_style="bold")
        for one in found.numbers:
            table.add_row(one.label, one.measure, *one.words, _said(one.verdict))
        out.print(table)
    for choice in found.choices:
        out.print(f"{choice.label}: {choice.told}", highlight=False, soft_wrap=True)
    for claim in found.claims:
        out.print(f"{claim.says}: {_said(claim.holds)} ({claim.numbers})", soft_wrap=True)
    words = f"{recipe.paper}, {recipe.place}; table.csv, figure.png, result.json: {place}"
    out.print(words, highlight=False, soft_wrap=True)


def _there(recipe: Recipe, mark: str | None) -> str:
    if mark is None:
        return "–"
    return "[green]committed" if recipe.is_of(mark) else "[yellow]of an earlier recipe"


def _long(minutes: float) -> str:
    """How long something takes, as people say it."""
    return f"{minutes:.2g} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _said(verdict: str) -> str:
    return f"[{COLOURS.get(verdict, 'yellow')}]{verdict}[/]"
