"""A picture of an experiment: ours beside the paper's, and how it came about over the rounds."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bouquet.report.figures import COLOURS, canvas, course_of, saved
from bouquet.reproduction.outcome import Outcome, is_percent
from bouquet.reproduction.recipe import BEST, BY, Recipe
from bouquet.reproduction.running import seeds_of
from bouquet.storage.files import write_atomically
from bouquet.storage.runs import Group, read

LATE = "newcomers."


def draw(recipe: Recipe, found: Outcome, out: Path, place: Path) -> None:
    """Write ``figure.png`` and ``figure.svg``.

    Parameters
    ----------
    recipe : Recipe
        What was run.
    found : Outcome
        What came out.
    out : Path
        The folder of the runs.
    place : Path
        Where the files go.
    """
    measures = list(dict.fromkeys(one.measure for one in found.numbers))
    groups = [] if recipe.computed else _groups(recipe, out)
    panels = max(1, len(measures) + bool(groups))
    tall = 1.6 + 0.34 * max([len(recipe.entries), *(_count(found, one) for one in measures)])
    figure = canvas(5.2 * panels, max(3.2, tall))
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis, measure in zip(axes, measures, strict=False):
        _beside(axis, found, measure)
    if groups:
        _course(axes[-1], groups, recipe)
    for kind in ("png", "svg"):
        write_atomically(place / f"figure.{kind}", saved(figure, kind))


def _count(found: Outcome, measure: str) -> int:
    return sum(one.measure == measure for one in found.numbers)


def _beside(axis: Any, found: Outcome, measure: str) -> None:
    """The paper's numbers and ours, a line an entry."""
    numbers = [one for one in found.numbers if one.measure == measure][::-1]
    heights = range(len(numbers))
    published, ours = [one.published for one in numbers], [one.mean for one in numbers]
    bars = [0.0 if one.std != one.std else 2 * one.std for one in numbers]
    axis.scatter(published, heights, marker="D", s=38, facecolors="none", edgecolors="#555555",
                 label="paper", zorder=3)  # fmt: skip
    axis.errorbar(ours, heights, xerr=bars, fmt="o", color=COLOURS[0], capsize=3,
                  label="ours, ± 2 deviations", zorder=4)  # fmt: skip
    for height, one in zip(heights, numbers, strict=True):
        axis.plot([one.published, one.mean], [height] * 2, color="#cccccc", zorder=1)
    axis.set_yticks(heights, [one.label for one in numbers])
    axis.set(xlabel=_words(measure))
    axis.grid(axis="x", color="#eeeeee")
    axis.legend(fontsize=8, loc="best")


def followed_in(recipe: Recipe) -> str:
    """What is drawn over the rounds: the first number there is, or what the first claim is about.

    It is of every round, also where the best of them counts.
    """
    measured = next((one for entry in recipe.entries for one in entry.published), "")
    by = measured or (recipe.claims[0].by if recipe.claims else BY)
    return by.removeprefix(BEST).rpartition(".")[0]


def _course(axis: Any, groups: Sequence[tuple[str, Group]], recipe: Recipe) -> None:
    followed = followed_in(recipe)
    times = 100 if is_percent(followed) else 1
    late = followed.startswith(LATE)
    for place, (label, group) in enumerate(groups):
        rounds, mean = _adaptation(group, followed) if late else _rounds(group, followed)
        axis.plot(rounds, [times * one for one in mean], label=label, linewidth=1.5,
                  color=COLOURS[place % len(COLOURS)],
                  linestyle=("-", "--", ":")[place // len(COLOURS) % 3])  # fmt: skip
    axis.set(xlabel="rounds after joining" if late else "round", ylabel=_words(f"{followed}.mean"))
    axis.legend(fontsize=7)


def _rounds(group: Group, followed: str) -> tuple[Sequence[int], Sequence[float]]:
    course = course_of(group, followed.replace(".", "_"))
    return course.rounds, course.mean


def _adaptation(group: Group, followed: str) -> tuple[Sequence[int], Sequence[float]]:
    """Newcomers have no rounds of training: how they do after each round of their own."""
    measure = followed.removeprefix(LATE).replace(".", "_")
    told = [run.summary["newcomers"]["adaptation"] for run in group.runs]
    mean = [fmean(float(one[measure]) for one in steps) for steps in zip(*told, strict=False)]
    return range(len(mean)), mean


def _groups(recipe: Recipe, out: Path) -> list[tuple[str, Group]]:
    return [
        (entry.label, Group(entry.label, tuple(read(one) for one in seeds_of(recipe, entry, out))))
        for entry in recipe.entries
    ]


def _words(measure: str) -> str:
    """``personal.accuracy.mean`` as people say it."""
    *words, last = measure.split(".")
    unit = " (%)" if is_percent(measure) else ""
    return " ".join([*words, *([] if last in ("mean", "value") else [last])]) + unit or "value"
