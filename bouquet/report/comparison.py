"""All numbers of all runs: of each configuration over its seeds, and of every client."""

from collections.abc import Sequence
from typing import Any

from bouquet.core.measure import LOSS
from bouquet.report.digits import with_spread
from bouquet.report.outcomes import Verdicts
from bouquet.report.seeds import spread
from bouquet.report.tables import Cell, Table, table_of
from bouquet.storage.runs import Run, grouped, labels, number

Row = dict[str, Any]


def comparison(runs: Sequence[Run]) -> list[Row]:
    """A row for each configuration: means and standard deviations over the runs' seeds."""
    rows = []
    for group in grouped(runs):
        row: Row = {
            "configuration": group.name,
            "seeds": group.seeds,
            "rounds": " ".join(sorted({f"{run.done}/{run.rounds}" for run in group.runs})),
        }
        for name, values in _measures(group.runs).items():
            row[name], row[f"{name}_std"] = spread(values)
        rows.append(row)
    return rows


def _measures(group: Sequence[Run]) -> dict[str, list[float]]:
    """What is compared, with a value for each run that ended."""
    found: dict[str, list[float]] = {}
    for run in group:
        for what in dict.fromkeys((run.measure, LOSS)):
            for whose in ("shared", "personal"):
                spread = run.summary.get(whose, {}).get(what.name, {})
                _note(found, f"{whose}_{what.name}", spread.get("mean"))
            worst = run.summary.get("personal", {}).get(what.name, {})
            _note(found, f"worst_{what.name}", what.worst(worst))
        for whose, spreads in run.summary.get("train", {}).items():
            _note(
                found,
                f"{whose}_train_{run.measure.name}",
                spreads.get(run.measure.name, {}).get("mean"),
            )
        for name in ("helped", "hurt", "clipped"):
            _note(found, name, run.summary.get(name))
        if run.summary:
            _note(found, "megabytes", _megabytes(run))
            _note(found, "seconds", run.summary.get("seconds"))
    return found


def _note(found: dict[str, list[float]], name: str, value: object) -> None:
    known = number(value)
    if known is not None:
        found.setdefault(name, []).append(known)


def _megabytes(run: Run) -> float:
    return sum(number(run.summary.get(f"bytes_{way}")) or 0.0 for way in ("up", "down")) / 1e6


def comparison_table(rows: Sequence[Row], better: str) -> Table:
    """The same for people.

    Parameters
    ----------
    rows : sequence of dict
        A row a configuration.
    better : str
        What the metric calls better and worse.
    """
    every = dict.fromkeys(column for row in rows for column in row)
    columns = [column for column in every if not column.endswith("_std")]
    cells = [[_told(row, column) for column in columns] for row in rows]
    note = (
        "Mean ± standard deviation over the seeds of a configuration, of means over clients, each "
        "on its own test data. Worst: the client whose personal model does worst. Helped, hurt: "
        f"clients whose personal model {better} than the shared one, by chance or not."
    )
    return table_of([column.replace("_", " ") for column in columns], cells, note)


def _told(row: Row, column: str) -> str | Cell:
    value = row.get(column)
    return value if isinstance(value, str) else with_spread(value, row.get(f"{column}_std"))


def names_of(runs: Sequence[Run]) -> list[str]:
    """Names that tell the runs apart."""
    found = [short(name, runs) for name in labels(runs)]
    seeds = len({run.seed for run in runs}) > 1
    found = [f"{n}, seed {r.seed}" if seeds else n for n, r in zip(found, runs, strict=True)]
    twice = {name for name in found if found.count(name) > 1}
    return [f"{n} ({r.name})" if n in twice else n for n, r in zip(found, runs, strict=True)]


def short(name: str, runs: Sequence[Run]) -> str:
    """A name without the data set, where there is one alone."""
    return name.replace(f" on {runs[0].data}", "", 1) if len({r.data for r in runs}) == 1 else name


def client_rows(runs: Sequence[Run], names: Sequence[str], judged: Sequence[Verdicts]) -> list[Row]:
    """Every client of every run: what the run says of it, and its verdict."""
    found = []
    by_run = {one.run.path: {row["client"]: row for row in one.rows} for one in judged}
    for run, name in zip(runs, names, strict=True):
        verdict_of = by_run.get(run.path, {})
        for row in run.clients:
            found.append({"run": name, **row, **verdict_of.get(str(row["client"]), {})})
    return found
