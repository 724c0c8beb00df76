"""What a person sees: progress while a run goes on, tables when it is over."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from bouquet.core.measure import CLASSES, VALUES, in_summary
from bouquet.report.seeds import Result, Spread, outcome, over_seeds
from bouquet.storage.events import short
from bouquet.storage.runs import number, read_summary

if TYPE_CHECKING:  # torch takes seconds to import
    from bouquet.api import Run
    from bouquet.data import FederatedData

out = Console()
err = Console(stderr=True)


BARS = "▁▂▃▄▅▆▇█"
EXPLAINED = (
    "On the clients' own test data. worst client: of the personal models; helped, hurt:"
    " clients whose personal model does better, worse than the shared one."
)


@contextmanager
def fetching(title: str, size: int, origin: str) -> Iterator[Callable[[int], None]]:
    """Show how a download of so many bytes goes: a bar on a terminal, plain lines elsewhere.

    Yields a function of how many there are.
    """
    if not err.is_terminal:
        words = f"{title}: {_bytes(size)} from {origin}"
        err.print(words, highlight=False, soft_wrap=True)
        yield lambda done: None
        err.print(f"{title}: fetched", highlight=False)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TextColumn(origin),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=err) as bars:
        bar = bars.add_task(title, total=size)
        yield lambda done: bars.update(bar, completed=done)
        bars.update(bar, completed=size)


FEW = 40  # clients a terminal can show line by line


def describe(data: "FederatedData") -> None:
    """Print who holds what: line by line of few clients, in short of many."""
    from bouquet.data.describe import heterogeneity, label_table

    trains = [len(split.train) for split in data.clients.values()]
    tests = [len(split.test) for split in data.clients.values()]
    if len(trains) <= FEW:
        out.print(_holdings(data))
    table = Table("", "all", "least", "mean", "most", header_style="bold")
    for what, sizes in (("training examples", trains), ("test examples", tests)):
        mean = sum(sizes) / len(sizes)
        table.add_row(what, str(sum(sizes)), str(min(sizes)), f"{mean:.1f}", str(max(sizes)))
    known = bool(data.classes) and data.targets == CLASSES
    if known:
        counts = label_table(data)
        kinds = (counts > 0).sum(axis=1)
        cells = (str(int(kinds.min())), f"{kinds.mean():.1f}", str(int(kinds.max())))
        table.add_row("classes of a client", str(data.classes), *cells)
    out.print(table)
    shape = " x ".join(map(str, data.x.shape[1:]))
    words = f"{len(trains)} clients, examples of shape {shape}"
    if data.targets != CLASSES:
        what = "values to predict" if data.targets == VALUES else "labels, any of them an example's"
        words += f"; {what}: {', '.join(data.names)}"
    if known:
        words += (
            f"; heterogeneity {heterogeneity(counts):.3f} (mean total variation distance of the "
            "clients' labels from everyone's: 0 if all are alike)"
        )
    out.print(f"{words}.", highlight=False, soft_wrap=True)


def _holdings(data: "FederatedData") -> Table:
    table = Table("client", "train", "test", header_style="bold")
    heading = "mean and deviation" if data.targets == VALUES else "training examples of each label"
    if data.classes:
        table.add_column(heading)
    for client, split in data.clients.items():
        row = [client, str(len(split.train)), str(len(split.test))]
        if data.targets == VALUES:
            held = data.y[split.train].double()
            ends = (held.mean(dim=0).tolist(), held.std(dim=0, correction=0).tolist())
            spreads = zip(data.names, *ends, strict=True)
            row.append("  ".join(f"{name}: {mean:.4g} ± {std:.2g}" for name, mean, std in spreads))
        elif data.classes:
            counts = zip(data.names, data.label_counts(client), strict=True)
            row.append("  ".join(f"{name}:{count}" for name, count in counts if count))
        table.add_row(*row)
    return table


def results(runs: "Sequence[Run]") -> Table:
    """One line a run: how well, how evenly, at what cost."""
    what = in_summary(runs[0].summary).name
    table = Table(title=None, header_style="bold")
    table.add_column("scheme", no_wrap=True)
    for heading in (
        f"shared {what}",
        f"personal {what}",
        "worst client",
        "helped",
        "hurt",
        "bytes",
        "seconds",
    ):
        table.add_column(heading, justify="right")
    for run in runs:
        summary = run.summary
        table.add_row(
            summary["scheme"],
            *map(short, outcome(summary)),
            str(summary["helped"]),
            str(summary["hurt"]),
            _bytes(summary["bytes_up"] + summary["bytes_down"]),
            f"{summary['seconds']:.1f}",
        )
    return table


def show(runs: "Sequence[Run]") -> None:
    """Print the table and where the runs are."""
    out.print(results(runs))
    out.print(f"[dim]{EXPLAINED}")
    for run in runs:
        if "train" in run.summary:
            out.print(on_training_data(run.summary), highlight=False, soft_wrap=True)
    for run in runs:
        line = course(run)
        if line and "utf" in out.encoding.lower():  # other terminals have no such letters
            out.print(line, highlight=False, soft_wrap=True)
    for run in runs:
        if "newcomers" in run.summary:
            out.print(newcomers(run.summary), highlight=False, soft_wrap=True)
    for run in runs:
        out.print(f"{run.summary['scheme']}: {run.folder}", highlight=False, soft_wrap=True)


def on_training_data(summary: dict[str, Any]) -> str:
    """How the models do on what they learnt from, beside the table that is about test data."""
    what = in_summary(summary).name
    shared, personal = (_mean(summary["train"][whose], what) for whose in ("shared", "personal"))
    return f"{summary['scheme']}: on training data shared {what} {shared}, personal {personal}"


def told(run: "Run") -> dict[str, Any]:
    """A run's summary and where it is, for programs."""
    return run.summary | {"folder": str(run.folder)}


def show_json(result: object) -> None:
    """Print a result for programs."""
    print(json.dumps(result, indent=2))


def show_seeds(runs: "Sequence[Run]", folder: Path) -> None:
    """Print the table of schemes that ran with several seeds each, and where the runs are."""
    summaries = [run.summary for run in runs]
    out.print(seeds_table(in_summary(summaries[0]).name, over_seeds(summaries)))
    out.print(f"[dim]Means over the seeds ± standard deviations. {EXPLAINED}")
    out.print(f"{len(runs)} runs: {folder}", highlight=False, soft_wrap=True)


def show_sweep(folder: Path) -> None:
    """Print what was chosen for each scheme, how it does on test data, and where all is."""
    from bouquet.sweeping.results import Results, worded
    from bouquet.sweeping.space import drawn_from

    found = Results(folder)
    summaries = [read_summary(one / "summary.json") for one in found.finals]
    chosen = {name: worded(one) for name, one in found.chosen.items()}
    out.print(seeds_table(in_summary(summaries[0]).name, over_seeds(summaries), chosen))
    out.print(
        "[dim]Chosen on validation data; means over the seeds ± standard deviations. " + EXPLAINED
    )
    for name, size in drawn_from(found.asked).items():
        tried = found.choice[name]["tried"]
        words = f"{name}: {tried} settings were drawn of the {size} of its grid."
        out.print(words, highlight=False, soft_wrap=True)
    words = f"bouquet report {folder} draws how much the choice matters."
    out.print(words, highlight=False, soft_wrap=True)


def told_of_sweep(folder: Path) -> dict[str, Any]:
    """What was chosen, the runs of it, and where all is, for programs."""
    from bouquet.sweeping.results import Results

    found = Results(folder)
    runs = [read_summary(one / "summary.json") | {"folder": str(one)} for one in found.finals]
    return {"folder": str(folder), "chosen": found.choice, "runs": runs}


def seeds_table(
    what: str, schemes: Sequence[Result], chosen: Mapping[str, str] | None = None
) -> Table:
    """One line a scheme: means and standard deviations over its runs, and what was chosen."""
    table = Table(header_style="bold")
    table.add_column("scheme", no_wrap=True)
    if chosen is not None:
        table.add_column("chosen")
    headings = (f"shared {what}", f"personal {what}", "worst client", "helped", "hurt")
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in schemes:
        measures = map(_with_spread, (one.shared, one.personal, one.worst))
        counts = (f"{count.mean:.1f}" for count in (one.helped, one.hurt))
        own = [] if chosen is None else [chosen[one.scheme]]
        table.add_row(one.scheme, *own, *measures, *counts)
    return table


def _with_spread(value: Spread) -> str:
    if abs(value.mean) >= 1e4:
        return short(value.mean)
    return f"{value.mean:.3f}" + ("" if value.std is None else f" ± {value.std:.3f}")


def course(run: "Run") -> str:
    """How the personal models' metric, or else loss, went over the rounds, as a line of text."""
    metrics, what = [event["metrics"] for event in run.events], in_summary(run.summary).name
    found = [number(one.get(f"personal_{what}")) for one in metrics]
    values = [value for value in found if value is not None]
    if len(values) < 2:
        return ""
    ends = f"{short(values[0])} to {short(values[-1])}"
    return f"{run.summary['scheme']}: personal {what} {sparkline(values)} {ends}"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Numbers as a row of bars, at most so many, the last number among them."""
    step = -(-len(values) // width)
    shown = values[::-1][::step][::-1]
    low, high = min(shown), max(shown)
    return "".join(BARS[round((v - low) / (high - low or 1) * (len(BARS) - 1))] for v in shown)


def newcomers(summary: dict[str, Any]) -> str:
    """How the clients that came late do, beside the others."""
    late = summary["newcomers"]
    what = in_summary(summary).name
    count = f"{len(late['clients'])} newcomer{'s' * (len(late['clients']) != 1)}"
    shared, personal = (_mean(late[whose], what) for whose in ("shared", "personal"))
    others = _mean(late["others"]["personal"], what)
    if not late["adaptation"]:
        return (
            f"{summary['scheme']}: {count} from round {late['joined']}: shared {what} {shared}, "
            f"personal {personal}; the others' personal {others}"
        )
    steps = " ".join(_short(entry.get(f"personal_{what}")) for entry in late["adaptation"])
    last = len(late["adaptation"]) - 1
    return (
        f"{summary['scheme']}: {count} after training: shared {what} {shared}, personal after 0 "
        f"to {last} rounds {steps}; the others' personal {others}"
    )


def _mean(spreads: dict[str, Any], what: str) -> str:
    return _short(spreads.get(what, {}).get("mean"))


def _short(value: float | None) -> str:
    """A number, or a dash for a metric that is not defined for anybody."""
    return "–" if value is None else short(value)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
