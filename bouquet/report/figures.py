"""The pictures of a report."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

import numpy as np

from bouquet.core.measure import ACCURATE, LOSS, Measure, prefix
from bouquet.storage.runs import Group, Run, number, stage_starts

# Okabe and Ito's colours, which people who confuse red and green can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
PAPER, INK = "#14181d", "#e6e9ed"  # as the page has them in the dark
DARK: dict[Any, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "legend.edgecolor": "#353d47",
}
HELPED, HURT, SAME = "#0072b2", "#d55e00", "#8a8a8a"


@dataclass(frozen=True)
class Picture:
    """A figure in two formats, one of them also for dark pages, and what it shows in words."""

    name: str
    title: str
    words: str
    png: bytes
    svg: bytes
    dark: bytes


@dataclass(frozen=True)
class Drawing:
    """A figure that is not saved yet."""

    figure: Any
    name: str
    title: str
    words: str


def draw_all(groups: Sequence[Group]) -> list[Picture]:
    """The figures that the runs have the numbers for; seeds of a configuration are one."""
    return drawn(lambda: _draw_all(groups))


def drawn(draw: Callable[[], Sequence[Drawing]]) -> list[Picture]:
    """Figures in all formats: they are drawn twice, for pages that are light and dark."""
    from matplotlib import rc_context

    pictures = []
    for one in draw():
        png, svg = saved(one.figure, "png"), saved(one.figure, "svg")
        pictures.append(Picture(one.name, one.title, one.words, png, svg, b""))
    with rc_context(DARK):
        dark = [saved(one.figure, "svg") for one in draw()]
    return [replace(one, dark=again) for one, again in zip(pictures, dark, strict=True)]


def _draw_all(groups: Sequence[Group]) -> list[Drawing]:
    groups = [replace(group, name=_named(group)) for group in groups]
    runs = [run for group in groups for run in group.runs]
    drawings = []
    compared = dict.fromkeys(run.measure for run in runs)
    for what in dict.fromkeys([*compared, LOSS]):
        for part in ("test", "train"):
            name = f"{prefix(part)}personal_{what.name}"
            if any(name in event["metrics"] for run in runs for event in run.events):
                drawings.append(_curves(groups, what, part))
    for measure in compared:
        alike = [group for group in groups if group.runs[0].measure == measure]
        measured = [group for group in alike if any(map(changes, group.runs))]
        if measured:
            drawings += [_violins(measured, measure), _scatter(measured, measure)]
    return drawings


def _named(group: Group) -> str:
    count = len(group.runs)
    return fill(f"{group.name}, {count} seeds" if count > 1 else group.name, 44)


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


def _curves(groups: Sequence[Group], measure: Measure, part: str) -> Drawing:
    what = measure.name
    figure = canvas(11, 4.2)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, whose in zip(axes, ("shared", "personal"), strict=True):
        for place, group in enumerate(groups):
            course = course_of(group, f"{prefix(part)}{whose}_{what}")
            colour = COLOURS[place % len(COLOURS)]
            marker = "o" if len(course.rounds) < 60 else ""  # every point is an evaluation
            axis.plot(
                course.rounds, course.mean, color=colour, label=group.name, linewidth=1.6,
                marker=marker, markersize=3.5,
            )  # fmt: skip
            ends = (course.low, course.high)
            axis.fill_between(course.rounds, *ends, color=colour, alpha=0.13, linewidth=0)
            for round_, stage in stage_starts(group.runs[0]):
                axis.axvline(round_ - 0.5, color="#bbbbbb", linewidth=0.8, zorder=0)
                axis.annotate(
                    stage,
                    (round_ - 0.5, 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(2, -9),
                    textcoords="offset points",
                    fontsize=7,
                    color="#777777",
                )
        axis.xaxis.get_major_locator().set_params(integer=True)
        label = measure.label if whose == "shared" else ""
        axis.set(xlabel="round", ylabel=label, title=f"{whose} model")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)))
    alone, several = "from the 10th to the 90th percentile of the clients", "one standard deviation"
    counts = {len(group.runs) > 1 for group in groups}
    band = alone if counts == {False} else f"{several} of the seeds' means to either side"
    if len(counts) > 1:
        band += f", or of a single seed {alone}"
    data = "test data" if part == "test" else "training data"
    words = (
        f"Mean {what} of the shared and the personal models on the clients' own {data} by "
        f"round; the band is {band}. Every point is an evaluation of all clients with the models "
        "after the round."
    )
    if part == "test":
        return Drawing(figure, what, what.capitalize(), words)
    return Drawing(figure, f"{part}-{what}", f"{what.capitalize()} on training data", words)


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


def _violins(measured: Sequence[Group], measure: Measure) -> Drawing:
    figure = canvas(11, 1.8 + 0.75 * len(measured))
    axis = figure.subplots()
    for place, group in enumerate(measured):
        rows = [row for run in group.runs for row in run.clients]
        for whose, shift, colour in (("shared", 0.19, SAME), ("personal", -0.19, HELPED)):
            values = [number(row.get(f"{whose}_{measure.name}")) for row in rows]
            known = [value for value in values if value is not None]
            height = len(measured) - 1 - place + shift
            _violin(axis, known, height, colour)
            axis.plot([], [], color=colour, linewidth=6, label=whose if not place else None)
    axis.set_yticks(range(len(measured)), [group.name for group in reversed(measured)])
    lower = " (lower is better)" if measure.lower_is_better else ""
    axis.set(xlabel=f"{measure.name} on the client's own test data{lower}")
    figure.legend(loc="outside lower center", ncols=2)
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


def _scatter(measured: Sequence[Group], measure: Measure) -> Drawing:
    columns = min(3, len(measured))
    rows = -(-len(measured) // columns)
    figure = canvas(11, 0.8 + 3 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in grid.flat[len(measured) :]:
        axis.set_visible(False)
    for axis, group in zip(grid.flat, measured, strict=False):
        points = [point for run in group.runs for point in changes(run)]
        groups = (("helped", HELPED, "^"), ("hurt", HURT, "v"), ("as before", SAME, "o"))
        for (word, colour, marker), sign in zip(groups, (1, -1, 0), strict=True):
            chosen = [point for point in points if np.sign(point[1]) == sign]
            x, y = [size for size, _ in chosen], [gain for _, gain in chosen]
            label = f"{len(chosen)} {word}"
            axis.scatter(x, y, s=18, color=colour, marker=marker, alpha=0.75, lw=0, label=label)
        axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        axis.set_title(group.name, fontsize=9)
        axis.legend(fontsize=7)
    figure.supxlabel("training examples", fontsize=10)
    first, second = ("shared", "personal") if measure.lower_is_better else ("personal", "shared")
    figure.supylabel(f"{first} less {second} {measure.name}", fontsize=10)
    words = (
        f"Every client's change in {measure.name} from the shared to its own model, against how "
        f"many examples it trains on. Points alone say nothing of chance: the verdict below does."
    )
    return Drawing(figure, _file("change", measure), "Helped and hurt", words)


def _file(name: str, measure: Measure) -> str:
    return name if measure == ACCURATE else f"{name}-{measure.name}"


def canvas(width: float, height: float) -> Any:
    """A figure of so many inches."""
    from matplotlib.figure import Figure

    # A Figure by itself knows no windows, so this works where there is no screen.
    return Figure(figsize=(width, height), layout="constrained")


def saved(figure: Any, kind: str) -> bytes:
    """A figure's file, ``png`` or ``svg``."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    content = io.BytesIO()
    # Without the time and the program's version, the same runs give the same file.
    facts = {"png": {"Software": None}, "svg": {"Date": None}}[kind]
    figure.savefig(content, format=kind, dpi=130, metadata=facts)
    return content.getvalue()
