"""A picture of an experiment: ours beside the paper's, and how it came about over the rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bouquet.colours import colour_of
from bouquet.core.measure import ACCURATE
from bouquet.report.figures import course_of, scattered
from bouquet.report.looks import GREY, INK, PAGE, canvas, legend, lines_of, saved, style
from bouquet.reproduction.outcome import Outcome, is_percent
from bouquet.reproduction.recipe import BEST, BY, Entry, Recipe
from bouquet.reproduction.running import seeds_of
from bouquet.storage.atomic import write_atomically
from bouquet.storage.runs import Group, read
from bouquet.sweeping.trials import FAILED

LATE, SIZES = "newcomers.", "examples."
# So many lines can be told apart in one panel.
FEW = 6


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
    from matplotlib import rc_context

    with rc_context(style(PAGE)):
        figure = _figure(recipe, found, out)
        for kind in ("png", "svg"):
            write_atomically(place / f"figure.{kind}", saved(figure, kind))


def _figure(recipe: Recipe, found: Outcome, out: Path) -> Any:
    measures = list(dict.fromkeys(one.measure for one in found.numbers))
    groups = [] if recipe.computed else _groups(recipe, out)
    if any(one.startswith(SIZES) for claim in recipe.claims for one in claim.by):
        look = replace(PAGE, width=5.2 * len(groups))
        return scattered([group for _, group in groups], ACCURATE, look).figure
    settings = in_settings([label for label, _ in groups]) if groups else {}
    panels = max(1, len(measures) + len(settings))
    lines = max((len(own) for own in settings.values()), default=len(recipe.entries))
    tall = 1.9 + 0.34 * max([lines, *(_count(found, one) for one in measures)])
    figure = canvas(5.2 * panels, max(3.6, tall))
    axes = figure.subplots(1, panels, squeeze=False)[0]
    schemes = {entry.name: scheme_of(recipe, entry) for entry in recipe.entries}
    for axis, measure in zip(axes, measures, strict=False):
        _beside(axis, found, measure, schemes)
    looks = _looks(recipe, settings)
    for axis, (setting, own) in zip(axes[len(measures) :], settings.items(), strict=False):
        _course(axis, own, groups, recipe, looks)
        axis.set_title(setting)
        axis.sharey(axes[len(measures)])
    # Nothing in it hides a point: all of it is below the axes.
    handles, labels = (
        [one for axis in axes for one in axis.get_legend_handles_labels()[part]] for part in (0, 1)
    )
    named = dict(zip(labels, handles, strict=True))
    legend(figure, replace(PAGE, width=5.2 * panels), list(named.values()), list(named))
    return figure


def scheme_of(recipe: Recipe, entry: Entry) -> str:
    """Whose colour an entry has."""
    keys = {**recipe.keys, **entry.keys}
    return str(keys.get("pipeline") or keys.get("scheme") or entry.name)


def _count(found: Outcome, measure: str) -> int:
    return sum(one.measure == measure for one in found.numbers)


def _beside(axis: Any, found: Outcome, measure: str, schemes: Mapping[str, str]) -> None:
    """The paper's numbers and ours, a line an entry."""
    numbers = [one for one in found.numbers if one.measure == measure][::-1]
    heights = range(len(numbers))
    axis.scatter([one.published for one in numbers], heights, marker="D", s=38, facecolors="none",
                 edgecolors=GREY, label="paper", zorder=3)  # fmt: skip
    for height, one in zip(heights, numbers, strict=True):
        colour = colour_of(schemes[one.entry]) if one.entry in schemes else INK  # no scheme's
        bar = 0.0 if one.std != one.std else 2 * one.std
        axis.errorbar([one.mean], [height], xerr=[bar], fmt="o", color=colour, capsize=3, zorder=4)
        axis.plot([one.published, one.mean], [height] * 2, color="#cccccc", zorder=1)
    axis.errorbar([], [], xerr=[], fmt="o", color=INK, capsize=3, label="ours, ± 2 deviations")
    axis.set_yticks(heights, [one.label for one in numbers])
    axis.set(xlabel=_words(measure))
    axis.grid(axis="x", color="#eeeeee")


def followed_in(recipe: Recipe) -> str:
    """What is drawn over the rounds: the first number there is, or what the first claim is about.

    It is of every round, also where the best of them counts.
    """
    measured = next((one for entry in recipe.entries for one in entry.published), "")
    by = measured or (recipe.claims[0].by[0] if recipe.claims else BY)
    return by.removeprefix(BEST).rpartition(".")[0]


def in_settings(labels: Sequence[str]) -> dict[str, dict[str, int]]:
    """Many lines in panels of their own, where the same are compared in several settings.

    ``APFL, two classes`` is of the setting ``two classes`` if most of its lines are in every other.

    Parameters
    ----------
    labels : sequence of str
        Of all lines.

    Returns
    -------
    dict
        For each setting its lines by their names there, and which of all they are; one without
        a name if there are not several.
    """
    found: dict[str, dict[str, int]] = {}
    for place, label in enumerate(labels):
        name, _, setting = label.rpartition(", ")
        found.setdefault(setting, {})[name] = place
    common = set.intersection(*map(set, found.values()))
    alike = 2 * len(common) > max(map(len, found.values()))
    if len(labels) <= FEW or len(found) == 1 or not alike:
        return {"": {label: place for place, label in enumerate(labels)}}
    return found


def _looks(recipe: Recipe, settings: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, Any]]:
    """How each line is drawn, in whichever panels it is."""
    named = {label: place for own in settings.values() for label, place in own.items()}
    schemes = [scheme_of(recipe, recipe.entries[place]) for place in named.values()]
    return dict(zip(named, lines_of(schemes), strict=True))


def _course(
    axis: Any,
    own: Mapping[str, int],
    groups: Sequence[tuple[str, Group]],
    recipe: Recipe,
    looks: Mapping[str, dict[str, Any]],
) -> None:
    followed = followed_in(recipe)
    times = 100 if is_percent(followed) else 1
    late = followed.startswith(LATE)
    for label, place in own.items():
        _, group = groups[place]
        if not group.runs:  # it diverged with every seed
            continue
        rounds, mean = _adaptation(group, followed) if late else _rounds(group, followed)
        axis.plot(rounds, [times * one for one in mean], label=label, markevery=0.1, **looks[label])
    axis.set(xlabel="rounds after joining" if late else "round", ylabel=_words(f"{followed}.mean"))


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
        (entry.label, Group(entry.label, tuple(read(one) for one in _ended(recipe, entry, out))))
        for entry in recipe.entries
    ]


def _ended(recipe: Recipe, entry: Entry, out: Path) -> list[Path]:
    return [one for one in seeds_of(recipe, entry, out) if not (one / FAILED).exists()]


def _words(measure: str) -> str:
    """``personal.accuracy.mean`` as people say it."""
    *words, last = measure.split(".")
    unit = " (%)" if is_percent(measure) else ""
    return " ".join([*words, *([] if last in ("mean", "value") else [last])]) + unit or "value"
