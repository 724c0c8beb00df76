"""The papers' experiments on a terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from bouquet.cli.display import out
from bouquet.reproduction.outcome import REPRODUCED, Outcome
from bouquet.reproduction.recipe import PAPERS, Recipe

COLOURS = {REPRODUCED: "green", "yes": "green", "no": "red"}


def show_recipes(recipes: Sequence[Recipe]) -> None:
    """Print the experiments there are."""
    table = Table("recipe", "what it is", "seeds", "minutes a seed", header_style="bold")
    for one in recipes:
        what = f"{one.place}: {one.title}" + f" [dim]({one.fraction})" * bool(one.fraction)
        table.add_row(one.name, what, str(len(one.seeds)), f"{one.minutes:g}")
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
    for claim in found.claims:
        out.print(f"{claim.says}: {_said(claim.holds)} ({claim.numbers})", soft_wrap=True)
    words = f"{recipe.paper}, {recipe.place}; table.csv, figure.png, result.json: {place}"
    out.print(words, highlight=False, soft_wrap=True)


def _said(verdict: str) -> str:
    return f"[{COLOURS.get(verdict, 'yellow')}]{verdict}[/]"
