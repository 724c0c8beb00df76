"""The table that comes first: how well each configuration does, whom it helps, what to deploy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from bouquet.core.measure import Measure
from bouquet.report.digits import NONE, with_interval, with_spread
from bouquet.report.outcomes import Verdicts
from bouquet.report.seeds import Spread, spread
from bouquet.report.tables import Cell, Table, table_of
from bouquet.report.verdict import mean_interval, student_interval
from bouquet.storage.runs import Group, Run, number

UNCLEAR = "no difference shown"
VERDICTS = ("helped", "hurt", UNCLEAR)


@dataclass(frozen=True)
class Change:
    """How much better one model does than another in the mean, with a 95% interval.

    Parameters
    ----------
    mean, low, high : float
        Above 0 for the better.
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return with_interval(self.mean, self.low, self.high)

    @property
    def shown(self) -> bool:
        """Whether the interval leaves 0 out."""
        return not self.low <= 0 <= self.high


def change_of(gains: Sequence[Sequence[float]]) -> Change | None:
    """The mean of every client's gain, a row a seed.

    With several seeds the interval is Student's over their means, as another seed would be one
    more draw; clients of one run share a model, and many of them would feign many draws. With one
    seed all there is to draw from are its clients: a bootstrap over them.
    """
    known = [list(one) for one in gains if len(one)]
    if not known:
        return None
    if len(known) == 1:
        return Change(mean(known[0]), *mean_interval(known[0]))
    means = np.array([mean(one) for one in known])
    return Change(float(means.mean()), *student_interval(means))


def gains_of(run: Run) -> list[float]:
    """How much better each client's own model does than the shared one, by the run's measure."""
    name = run.measure.name
    pairs = [
        (number(row.get(f"shared_{name}")), number(row.get(f"personal_{name}")))
        for row in run.clients
    ]
    return [run.measure.gain(*pair) for pair in pairs if None not in pair]  # type: ignore[arg-type]


def best_of(groups: Sequence[Group]) -> set[str]:
    """The configurations to print in bold: the best personal models, and those not told from it.

    Only what was trained on the same data and is judged alike is compared, client by client and
    seed by seed: another is told from the best where the 95% interval of the mean difference
    leaves 0 out.
    """
    fields: dict[object, list[Group]] = {}
    for group in groups:
        if _personal(group.runs) is not None:
            fields.setdefault(_field(group.runs[0]), []).append(group)
    bold = set()
    for rivals in fields.values():
        if len(rivals) < 2:
            continue
        measure = rivals[0].runs[0].measure
        sign = -1 if measure.lower_is_better else 1
        best = max(rivals, key=lambda one: sign * _mean(one))
        bold.add(best.name)
        for other in rivals:
            gap = change_of(_gaps(other, best, measure)) if other is not best else None
            if gap is not None and not gap.shown:
                bold.add(other.name)
    return bold


def _field(run: Run) -> object:
    """What must be alike for two numbers to be about the same thing."""
    data = {key: str(value) for key, value in run.config.items() if key.startswith("data.")}
    return run.measure, run.config.get("evaluate-on"), tuple(sorted(data.items()))


def _mean(group: Group) -> float:
    found = _personal(group.runs)
    return found.mean if found else float("nan")


def _personal(runs: Sequence[Run], whose: str = "personal") -> Spread | None:
    """A model's mean over clients, and over the seeds of a configuration."""
    told = [run.summary.get(whose, {}).get(run.measure.name, {}).get("mean") for run in runs]
    known = [value for one in told if (value := number(one)) is not None]
    return spread(known) if known else None


def _gaps(one: Group, other: Group, measure: Measure) -> list[list[float]]:
    """How much better the second's personal models are, client by client, a row a common seed."""
    theirs = {run.seed: _by_client(run) for run in other.runs}
    return [
        [
            measure.gain(mine, theirs[run.seed][client])
            for client, mine in _by_client(run).items()
            if client in theirs[run.seed]
        ]
        for run in one.runs
        if run.seed in theirs
    ]


def _by_client(run: Run) -> dict[str, float]:
    column = f"personal_{run.measure.name}"
    told = {str(row["client"]): number(row.get(column)) for row in run.clients}
    return {client: value for client, value in told.items() if value is not None}


def overview(groups: Sequence[Group], judged: Mapping[Path, Verdicts]) -> Table:
    """A line a configuration: its models, who is helped or hurt, and what to deploy.

    Parameters
    ----------
    groups : sequence of Group
        The configurations.
    judged : mapping of Path to Verdicts
        By a run's folder, where it kept its models' answers.
    """
    bold = best_of(groups)
    several = any(len(group.runs) > 1 for group in groups)
    advised = any("advice" in row for one in judged.values() for row in one.rows)
    measures = {run.measure.name for group in groups for run in group.runs}
    what = measures.pop() if len(measures) == 1 else "metric"
    columns = ["configuration", *["seeds"] * several, f"shared {what}", f"personal {what}"]
    columns += ["clients", *VERDICTS] if judged else []
    columns += [_heading(groups, judged), *(["deploy", "which gives"] if advised else [])]
    rows: list[list[str | Cell]] = []
    for group in groups:
        mine = [judged[run.path] for run in group.runs if run.path in judged]
        row: list[str | Cell] = [Cell(group.name, scheme=group.runs[0].scheme)]
        row += [str(len(group.runs))] if several else []
        row.append(_said(_personal(group.runs, "shared")))
        row.append(Cell(_said(_personal(group.runs)), bold=group.name in bold))
        row += _counts(mine, "") if judged else []
        gains = [[float(row["change"]) for row in one.rows] for one in mine]
        row.append(str(change_of(gains or [gains_of(run) for run in group.runs]) or NONE))
        row += _deploy(mine) if advised else []
        rows.append(row)
    return table_of(columns, rows, _note(several, bool(judged), bool(bold), advised))


def against_local(groups: Sequence[Group], judged: Mapping[Path, Verdicts]) -> Table | None:
    """The same of each configuration's personal models against models trained alone."""
    rows: list[list[str | Cell]] = []
    for group in groups:
        mine = [one for run in group.runs if (one := judged.get(run.path)) and one.local]
        gains = [
            [float(row["change_local"]) for row in one.rows if "p_local" in row] for one in mine
        ]
        change = change_of(gains)
        if change is not None:
            name = Cell(group.name, scheme=group.runs[0].scheme)
            rows.append([name, *_counts(mine, "_local"), str(change)])
    columns = ["against Local", "clients", *VERDICTS, _heading(groups, judged)]
    return table_of(columns, rows) if rows else None


def _heading(groups: Sequence[Group], judged: Mapping[Path, Verdicts]) -> str:
    runs = [run for group in groups for run in group.runs]
    measures = {judged[run.path].measure if run.path in judged else run.measure for run in runs}
    if len(measures) > 1:
        return "mean change for the better"
    (measure,) = measures
    return f"mean {'decrease' if measure.lower_is_better else 'change'} in {measure.name}"


def _counts(judged: Sequence[Verdicts], suffix: str) -> list[str]:
    """How many clients there are, helped, hurt, and neither; of all seeds together."""
    column = f"verdict{suffix}"
    found = Counter(row[column] for one in judged for row in one.rows if column in row)
    if not found:
        return [NONE] * (1 + len(VERDICTS))
    perhaps = {word: found[f"perhaps {word}"] for word in VERDICTS}
    told = [
        f"{found[word]} (+{more})" if more else str(found[word]) for word, more in perhaps.items()
    ]
    return [str(found.total()), *told]


def _deploy(judged: Sequence[Verdicts]) -> list[str]:
    """Which models to use, for how many clients, and what that gives on test examples."""
    rows = [[row for row in one.rows if "advice" in row] for one in judged]
    found = Counter(str(row["advice"]) for one in rows for row in one)
    if not found:
        return [NONE, NONE]
    name = f"advised_{judged[0].measure.name}"
    gives = spread([mean(float(row[name]) for row in one) for one in rows if one])
    return [", ".join(f"{count} {model}" for model, count in found.most_common()), _said(gives)]


def _said(found: Spread | None) -> str:
    return NONE if found is None else with_spread(*found)


def _note(several: bool, judged: bool, bold: bool, advised: bool) -> str:
    said = ["Models: means over clients, each on its own test data"]
    said[0] += ", and over seeds ± their standard deviation." if several else "."
    interval = "Changes: from the shared to the personal model, with a 95% interval"
    over = "over seeds (Student's), of a single seed over clients (bootstrap)"
    said.append(f"{interval} {over if several else 'over clients (bootstrap)'}.")
    if bold:
        said.append(
            "Bold: the best personal models on the same data, and those that the 95% interval of "
            "the difference, client by client, does not tell from them."
        )
    if judged:
        said.append(
            "Helped, hurt: clients, with 95% confidence for all clients of a run together; in "
            "brackets more of them, each by its own test alone."
        )
    if advised:
        said.append(
            "Deploy: for how many clients which model is advised, chosen on validation examples, "
            "and what the advised models give on test examples."
        )
    return " ".join(said)
