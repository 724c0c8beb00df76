"""``docs/reproductions.md``: every experiment, the paper's numbers beside ours."""

from collections.abc import Iterable
from pathlib import Path

from bouquet.reproduction.outcome import NOT, ORDER, REPRODUCED, Number, Outcome
from bouquet.reproduction.recipe import PAPERS, Recipe, find, names
from bouquet.reproduction.running import kept

HEAD = """# The papers, reproduced

One command each: `bouquet reproduce NAME` runs an experiment, goes on where it stopped, and puts a
table and a figure beside the published numbers; `--quick` is a small version of it. The recipes are
files to read and change ([reproduce/](../reproduce)). This page is made from their results by
`bouquet reproduce --page`.

*Reproduced* is a number within two standard deviations over seeds, or one point (of a loss: a
tenth), of the published one. *Same order* is one further off where all entries the paper has more
than a point apart are in the paper's order. Ours are ± their standard deviation over seeds, the
difference ± the standard error of our mean. A seed that diverged is in no mean, and where one did,
nothing is reproduced. No number was tuned on test data: what was chosen was chosen on a part of
each client's training data. Where ours differed we looked for the reason, also in the code that
authors published; where that changed a recipe, its note says what came out before.
"""

EARLIER = """**Of an earlier recipe:** its keys have changed since these results were made; what is
said below of settings and reasons is said of the new one.
"""


def page(results: Path) -> str:
    """The whole page, from the results in a folder."""
    parts = [HEAD]
    found = {name: kept(results / name) for name in names()}
    parts.append(_overview(found))
    for paper, words in PAPERS.items():
        mine = [find(name) for name in found]
        mine = [recipe for recipe in mine if recipe.paper == paper]
        if mine:
            parts.append(f"## {words}\n")
            parts += [_section(recipe, found[recipe.name], results) for recipe in mine]
    return "\n".join(parts)


def _overview(found: dict[str, Outcome | None]) -> str:
    lines = [
        f"| experiment | numbers | {REPRODUCED} | {ORDER} | {NOT} | claims that hold | hours |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        if one is None:
            lines.append(f"| {name} | not run yet | | | | | |")
            continue
        verdicts = [number.verdict for number in one.numbers]
        counts = [str(verdicts.count(kind)) for kind in (REPRODUCED, ORDER, NOT)]
        held = sum(claim.holds == "yes" for claim in one.claims)
        claims = f"{held} of {len(one.claims)}" if one.claims else ""
        hours = f"{one.about['hours']:.2f}"
        earlier = " (of an earlier recipe)" * _earlier(find(name), one)
        cells = [f"[{name}](#{name}){earlier}", str(len(verdicts)), *counts, claims, hours]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _section(recipe: Recipe, found: Outcome | None, results: Path) -> str:
    words = [f"### {recipe.name}\n", f"{recipe.place}: {recipe.title}\n"]
    if recipe.fraction:
        words.append(f"**Not the whole experiment:** {recipe.fraction}\n")
    if found is None:
        return "\n".join([*words, f"Not run yet: `bouquet reproduce {recipe.name}`.\n"])
    if _earlier(recipe, found):
        words.append(EARLIER)
    if found.numbers:
        words += ["| | measure | paper | ours | difference | |", "|---|---|---|---|---|---|"]
        words += [_row(one) for one in found.numbers]
        words.append("")
        off = {one.entry for one in found.numbers if one.verdict != REPRODUCED}
        words += _reasons("**", ((one.label, one.why) for one in recipe.entries if one.name in off))
    if found.claims:
        words += ["| the paper says | holds | ours |", "|---|---|---|"]
        words += [f"| {one.says} | {one.holds} | {one.numbers} |" for one in found.claims]
        words.append("")
        fail = {one.says for one in found.claims if one.holds != "yes"}
        words += _reasons("*", ((one.says, one.why) for one in recipe.claims if one.says in fail))
    if found.choices:
        words.append("Chosen on validation data, before the test data were looked at:\n")
        words += _list(f"{one.label}: {one.told}" for one in found.choices)
    if recipe.note:
        words.append(recipe.note.strip() + "\n")
    if (results / recipe.name / "figure.png").exists():
        words.append(f"![{recipe.title}](../reproduce/results/{recipe.name}/figure.png)\n")
    told = found.about
    words.append(
        f"Seeds {', '.join(map(str, told['seeds']))}; {told['hours']:.2f} core hours on "
        f"{told['machine']}; commit {told['commit'] or 'unknown'}, torch {told['torch']}.\n"
    )
    return "\n".join(words)


def _earlier(recipe: Recipe, found: Outcome) -> bool:
    return not recipe.is_of(found.about.get("mark", ""))


def _reasons(mark: str, told: Iterable[tuple[str, str]]) -> list[str]:
    """Why numbers or claims differ, each reason once, after all that it is the reason of."""
    about: dict[str, list[str]] = {}
    for one, why in told:
        about.setdefault(why, []).append(one)
    return _list(f"{mark}{'; '.join(own)}:{mark} {why}" for why, own in about.items() if why)


def _list(told: Iterable[str]) -> list[str]:
    """Lines of a list, and an empty one after it."""
    lines = [f"- {' '.join(one.split())}" for one in told]
    return [*lines, ""] if lines else []


def _row(one: Number) -> str:
    return f"| {' | '.join([one.label, one.measure, *one.words, one.verdict])} |"
