"""The pictures of a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bouquet.colours import colour_of
from bouquet.core.measure import ACCURATE, LOSS, Measure, prefix
from bouquet.report.looks import (
    GREY,
    INK,
    Drawing,
    Look,
    Picture,
    canvas,
    drawn,
    legend,
    lines_of,
)
from bouquet.storage.runs import Group, Run, number, stage_starts

MOST_MARKS = 60  # of a line; more would hide it
MOST_BANDS = 4  # more on top of each other show nothing


def draw_all(groups: Sequence[Group]) -> list[Picture]:
    """The figures that the runs have the numbers for; seeds of a configuration are one."""
    return drawn(lambda look: drawings(groups, look))


def drawings(groups: Sequence[Group], look: Look) -> list[Drawing]:
    """The figures, in a look."""
    runs = [run for group in groups for run in group.runs]
    found = []
    compared = dict.fromkeys(run.measure for run in runs)
    for what in dict.fromkeys([*compared, LOSS]):
        for part in ("test", "train"):
            name = f"{prefix(part)}personal_{what.name}"
            if any(name in event["metrics"] for run in runs for event in run.events):
                found.append(_curves(groups, what, part, look))
    for measure in compared:
        alike = [group for group in groups if group.runs[0].measure == measure]
        measured = [group for group in alike if any(map(changes, group.runs))]
        if measured:
            found += [_violins(measured, measure, look), scattered(measured, measure, look)]
    return found


def _named(group: Group) -> str:
    count = len(group.runs)
    return f"{group.name}, {count} seeds" if count > 1 else group.name


def changes(run: Run) -> list[tuple[float, float]]:
    """Each client's training examples, and how much better its own model does by the metric."""
    measure, found = run.measure, []
    if measure == LOSS:
        return []
    for row in run.clients:
        size, shared, own = (
            number(row.get(key))
            for key in ("train_examples", f"shared_{measure.name}", f"personal_{measure.name}")
        )
        if size is not None and shared is not None and own is not None:
            found.append((size, measure.gain(shared, own)))
    return found


def _curves(groups: Sequence[Group], measure: Measure, part: str, look: Look) -> Drawing:
    what = measure.name
    across = 1 if look.narrow else 2
    figure = canvas(look.width, 2.6 * look.width / across / 5.5 * (2 if look.narrow else 1) + 0.9)
    axes = figure.subplots(2 // across, across, sharey=True, sharex=True, squeeze=False)
    banded = len(groups) <= MOST_BANDS
    lines = lines_of([group.runs[0].scheme for group in groups])
    for axis, whose in zip(axes.flat, ("shared", "personal"), strict=True):
        for group, line in zip(groups, lines, strict=True):
            course = course_of(group, f"{prefix(part)}{whose}_{what}")
            every = 1 + len(course.rounds) // MOST_MARKS * 6
            name = look.wrapped(_named(group), 0.45)
            axis.plot(course.rounds, course.mean, label=name, markevery=every, **line)
            if banded:
                ends = (course.low, course.high)
                axis.fill_between(course.rounds, *ends, color=line["color"], alpha=0.1, lw=0)
            for round_, stage in stage_starts(group.runs[0]):
                axis.axvline(round_ - 0.5, color=GREY, linewidth=0.6, zorder=0)
                axis.annotate(
                    stage,
                    (round_ - 0.5, 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(2, -9),
                    textcoords="offset points",
                    fontsize=0.7 * look.font,
                    color=GREY,
                )
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.set_title(f"{whose} model")
    for axis in axes[-1]:
        axis.set_xlabel("round")
    for axis in axes[:, 0]:
        axis.set_ylabel(measure.label)
    legend(figure, look, *axes[0, 0].get_legend_handles_labels())
    data = "test data" if part == "test" else "training data"
    words = (
        f"Mean {what} of the shared and the personal models on the clients' own {data} by "
        f"round{_band(groups) if banded else ''}. Evaluations are of all clients with "
        "the models after the round."
    )
    if part == "test":
        return Drawing(figure, what, what.capitalize(), words)
    return Drawing(figure, f"{part}-{what}", f"{what.capitalize()} on training data", words)


def _band(groups: Sequence[Group]) -> str:
    """What a band is about."""
    alone, several = "from the 10th to the 90th percentile of the clients", "one standard deviation"
    counts = {len(group.runs) > 1 for group in groups}
    band = alone if counts == {False} else f"{several} of the seeds' means to either side"
    if len(counts) > 1:
        band += f", or of a single seed {alone}"
    return f"; the band is {band}"


@dataclass(frozen=True)
class Course:
    """A measure over the rounds, with a band."""

    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]


def course_of(group: Group, measure: str) -> Course:
    """A measure's mean over seeds and their standard deviation; over clients where one seed is.

    Only rounds that every seed has count: a mean over fewer would jump where one ends.
    """
    told = [_told(run, measure) for run in group.runs]
    rounds = sorted(set.intersection(*(set(one) for one in told)))
    if len(told) == 1:
        metrics = [told[0][round_] for round_ in rounds]
        mean = [float(one[measure]) for one in metrics]
        ends = [[_end(one, measure, end) for one in metrics] for end in ("p10", "p90")]
        return Course(rounds, mean, *ends)
    values = np.array([[one[round_][measure] for round_ in rounds] for one in told], np.float64)
    middle, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
    return Course(rounds, middle.tolist(), (middle - spread).tolist(), (middle + spread).tolist())


def _told(run: Run, measure: str) -> dict[int, dict[str, Any]]:
    """The rounds whose metrics have a measure."""
    known = [one for one in run.events if number(one["metrics"].get(measure)) is not None]
    return {int(one["round"]): one["metrics"] for one in known}


def _end(metrics: dict[str, Any], measure: str, end: str) -> float:
    found = number(metrics.get(f"{measure}_{end}"))
    return float(metrics[measure]) if found is None else found


def _violins(measured: Sequence[Group], measure: Measure, look: Look) -> Drawing:
    figure = canvas(look.width, 1.2 + (0.5 if look.width < 8 else 0.65) * len(measured))
    axis = figure.subplots()
    for place, group in enumerate(measured):
        rows = [row for run in group.runs for row in run.clients]
        own = colour_of(group.runs[0].scheme)
        for whose, shift, colour in (("shared", 0.19, GREY), ("personal", -0.19, own)):
            values = [number(row.get(f"{whose}_{measure.name}")) for row in rows]
            known = [value for value in values if value is not None]
            height = len(measured) - 1 - place + shift
            _violin(axis, known, height, colour)
    names = [look.wrapped(_named(group), 0.3) for group in reversed(measured)]
    axis.set_yticks(range(len(measured)), names)
    lower = " (lower is better)" if measure.lower_is_better else ""
    axis.set(xlabel=f"{measure.name} on the client's own test data{lower}")
    handles = [axis.plot([], [], color=colour, linewidth=5)[0] for colour in (GREY, INK)]
    legend(figure, look, handles, ["shared (above)", "personal (below)"])
    many = "accuracies" if measure == ACCURATE else f"{measure.name} numbers"
    words = f"How the clients' {many} are spread; a dot is a client, the line their median."
    if any(len(group.runs) > 1 for group in measured):
        words += " Clients of several seeds are together, so there are as many dots of each."
    return Drawing(figure, _file("spread", measure), "Clients", words)


def _violin(axis: Any, values: Sequence[float], height: float, colour: str) -> None:
    if len(set(values)) > 1:  # a density needs values that differ
        parts = axis.violinplot(
            values, [height], orientation="horizontal", widths=0.36, showextrema=False
        )
        for body in parts["bodies"]:
            body.set(facecolor=colour, alpha=0.35)
    spread = np.random.default_rng(0).uniform(-0.07, 0.07, len(values))
    axis.scatter(values, height + spread, s=7, color=colour, alpha=0.7, linewidth=0)
    middle = float(np.median(values))
    axis.vlines(middle, height - 0.16, height + 0.16, color=colour, linewidth=2)


def scattered(measured: Sequence[Group], measure: Measure, look: Look) -> Drawing:
    """Each client's change by its own model over how many examples it has; a panel a group."""
    columns = min(look.across, len(measured))
    rows = -(-len(measured) // columns)
    figure = canvas(look.width, 1.1 + 0.82 * look.width / look.across * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in grid.flat[len(measured) :]:
        axis.set_visible(False)
    kinds = (("better", "^"), ("worse", "v"), ("as before", "o"))
    for axis, group in zip(grid.flat, measured, strict=False):
        points = [point for run in group.runs for point in changes(run)]
        counts = []
        for (word, marker), sign in zip(kinds, (1, -1, 0), strict=True):
            chosen = [point for point in points if np.sign(point[1]) == sign]
            x, y = [size for size, _ in chosen], [gain for _, gain in chosen]
            colour = GREY if not sign else colour_of(group.runs[0].scheme)
            axis.scatter(x, y, s=1.8 * look.font, color=colour, marker=marker, alpha=0.75, lw=0)
            counts += [f"{len(chosen)} {word}"] if chosen else []
        axis.axhline(0, color=GREY, linewidth=0.8, zorder=0)
        name = look.wrapped(_named(group), 0.9 / columns)
        told = look.wrapped(", ".join(counts), 0.9 / columns)
        axis.set_title(f"{name}\n{told}", fontsize=0.9 * look.font)
    for axis in grid.flat[max(0, len(measured) - columns) : len(measured)]:  # each column's last
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("training examples")
    first, second = ("shared", "personal") if measure.lower_is_better else ("personal", "shared")
    figure.supylabel(f"{first} less {second} {measure.name}")
    shapes = [grid[0, 0].scatter([], [], s=20, color=INK, marker=mark) for _, mark in kinds]
    legend(figure, look, shapes, [word for word, _ in kinds])
    words = (
        f"Every client's change in {measure.name} from the shared to its own model, against how "
        "many examples it trains on. Points alone say nothing of chance: the verdicts do."
    )
    return Drawing(figure, _file("change", measure), "Each client's change", words)


def _file(name: str, measure: Measure) -> str:
    return name if measure == ACCURATE else f"{name}-{measure.name}"
