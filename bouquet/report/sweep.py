"""A sweep on paper: what was chosen, and how much the choice matters."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

from bouquet.core.config import Scalar
from bouquet.report.digits import plain, with_spread
from bouquet.report.looks import PAPER, Drawing, Look, canvas, legend, lines_of
from bouquet.report.seeds import over_seeds
from bouquet.report.tables import Table, as_rows
from bouquet.storage.runs import read_summary
from bouquet.sweeping.results import Results, is_sweep, worded
from bouquet.sweeping.trials import Score, best

MOST_TICKS = 10


def final_runs(folder: Path) -> Path | None:
    """Where the runs to compare are: of a sweep, those of what was chosen, once there are any."""
    if not is_sweep(folder):
        return folder
    place = folder / "final"
    return place if any(place.glob("*/config.toml")) else None


def chosen_table(results: Results) -> Table | None:
    """A line a scheme: its setting, how it did on validation data, and how it does on test data."""
    ended = over_seeds([read_summary(one / "summary.json") for one in results.finals])
    tested = {one.scheme: one for one in ended}
    rows = []
    for name, one in results.choice.items():
        row = {
            "scheme": name,
            "chosen": worded(one["setting"]),
            "settings tried": str(one["tried"]),
            f"validation {one['measure']}": plain(one["validation"]),
            "validation loss": plain(one["validation_loss"]),
        }
        if name in tested:
            row["test"] = with_spread(*tested[name].personal)
        rows.append(row)
    return as_rows(rows) if rows else None


def method(results: Results) -> str:
    """How the choice was made, in words."""
    asked, how = results.asked, results.asked.how
    folds = f"{how.folds}-fold cross-validation of each client's training examples"
    part = folds if how.folds else f"a share of {how.validation:g} of each client's examples"
    seeds = " ".join(map(str, asked.tune_seeds))
    ended = "" if how.stop == "never" else " Trials were ended early by successive halving."
    return (
        f"Chosen by the personal models' mean {_measure(results)} on validation data ({part}, "
        f"seeds {seeds}); test data had no part in it. The runs below are of these settings, on "
        f"all training data.{ended}"
    )


def sensitivity(results: Results, look: Look) -> list[Drawing]:
    """How the validation numbers depend on each searched key."""
    if not any(math.isfinite(one.value) for one in results.scores):
        return []
    return [_sensitivity(results, look)]


def _measure(results: Results) -> str:
    known = [one for one in results.scores if math.isfinite(one.value)]
    return known[0].measure.name if known else results.asked.how.measure


def _sensitivity(results: Results, look: Look) -> Drawing:
    keys, what = list(results.asked.grid), _measure(results)
    columns = min(1 if look.narrow else look.across, len(keys))
    rows = -(-len(keys) // columns)
    width = look.width if columns > 1 or look.narrow else 0.7 * look.width
    figure = canvas(width, 0.9 + 0.7 * look.width / (1 if look.narrow else 2.4) * rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axis in grid.flat[len(keys) :]:
        axis.set_visible(False)
    schemes = best(results.scores)
    shapes = lines_of(list(schemes))
    for axis, key in zip(grid.flat, keys, strict=False):
        for (name, tried), shape in zip(schemes.items(), shapes, strict=True):
            chosen = results.chosen.get(name, {}).get(key)
            _line(axis, results.axis(key), key, name, tried, chosen, shape)
        values = results.asked.grid[key]
        if results.axis(key) != "names" and isinstance(values, tuple) and len(values) <= MOST_TICKS:
            axis.set_xticks(
                sorted(map(float, values)), [f"{v:g}" for v in sorted(map(float, values))]
            )
            axis.minorticks_off()
        axis.set_xlabel(key)
    for row in grid:
        row[0].set_ylabel(f"validation {what}")
    named = {
        label: handle
        for axis in grid.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    legend(figure, look, list(named.values()), list(named))
    words = (
        f"Mean {what} of the personal models on validation data by each searched key; of settings "
        "that differ in other keys, the best. Bars are a standard deviation over the seeds to "
        "either side, stars what was chosen."
    )
    return Drawing(figure, "sensitivity", "How much the choice matters", words)


def _line(
    axis: Any,
    kind: str,
    key: str,
    name: str,
    tried: Sequence[Score],
    chosen: Scalar | None,
    shape: dict[str, Any],
) -> None:
    """A scheme's line: the best setting for each value of a key; ``tried`` has the best first."""
    found: dict[Scalar, Score] = {}
    for one in tried:
        if key in one.setting and math.isfinite(one.value):
            found.setdefault(one.setting[key], one)
    if not found:
        return
    values = list(found) if kind == "names" else sorted(found, key=float)
    x: list[Any] = [str(value) for value in values] if kind == "names" else list(values)
    y = [found[value].value for value in values]
    spread = [stdev(s) if len(s := found[value].by_seed) > 1 else 0.0 for value in values]
    axis.errorbar(x, y, yerr=spread, label=name, capsize=3, **shape)
    if kind == "log":
        axis.set_xscale("log")
    if chosen in found:
        at = str(chosen) if kind == "names" else chosen
        star = {"color": shape["color"], "markersize": 15, "mec": PAPER, "zorder": 5}
        axis.plot([at], [found[chosen].value], "*", **star)
