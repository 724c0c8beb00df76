"""What a person sees: progress while a run goes on, tables when it is over."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

out = Console()
err = Console(stderr=True)


Observer = Callable[[dict[str, Any]], None]


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], Observer]]:
    """Show the progress of runs: bars on a terminal, plain lines elsewhere.

    Yields a function of a run's name, its rounds, and how many are done already.
    """
    if not err.is_terminal:
        yield (
            lambda title, rounds, done: (
                lambda event: err.print(
                    f"{title} round {event['round']}/{rounds} {_words(event)}",
                    highlight=False,
                    soft_wrap=True,
                )
            )
        )
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=err) as bars:

        def follow(title: str, rounds: int, done: int) -> Observer:
            bar = bars.add_task(title, total=rounds, completed=done, words="waiting")
            return lambda event: bars.update(bar, completed=event["round"], words=_words(event))

        yield follow


def _words(event: dict[str, Any]) -> str:
    metrics = event["metrics"]
    what = "accuracy" if "shared_accuracy" in metrics else "loss"
    words = [f"{event['seconds']:.2f} s/round"]
    for whose in ("shared", "personal"):
        if f"{whose}_{what}" in metrics:
            words.append(f"{whose} {what} {_number(metrics[f'{whose}_{what}'])}")
    if event["failures"]:
        words.append(f"{len(event['failures'])} failed")
    return "  ".join(words)


@dataclass(frozen=True)
class Finished:
    """A run that ended well, and where it is."""

    summary: dict[str, Any]
    folder: Path


def results(runs: Sequence[Finished]) -> Table:
    """One line a run: how well, how evenly, at what cost."""
    what = "accuracy" if "accuracy" in runs[0].summary["shared"] else "loss"
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
        personal = summary["personal"][what]
        table.add_row(
            summary["scheme"],
            _number(summary["shared"][what]["mean"]),
            _number(personal["mean"]),
            _number(personal["min"] if what == "accuracy" else personal["max"]),
            str(summary["helped"]),
            str(summary["hurt"]),
            _bytes(summary["bytes_up"] + summary["bytes_down"]),
            f"{summary['seconds']:.1f}",
        )
    return table


def show(runs: Sequence[Finished]) -> None:
    """Print the table and where the runs are."""
    out.print(results(runs))
    out.print(
        "[dim]On the clients' own test data. worst client: of the personal models; helped, hurt:"
        " clients whose personal model does better, worse than the shared one."
    )
    for run in runs:
        if "newcomers" in run.summary:
            out.print(newcomers(run.summary), highlight=False, soft_wrap=True)
    for run in runs:
        out.print(f"{run.summary['scheme']}: {run.folder}", highlight=False, soft_wrap=True)


def newcomers(summary: dict[str, Any]) -> str:
    """How the clients that came late do, beside the others."""
    late = summary["newcomers"]
    what = "accuracy" if "accuracy" in late["shared"] else "loss"
    count = f"{len(late['clients'])} newcomer{'s' * (len(late['clients']) != 1)}"
    shared, personal = (_number(late[whose][what]["mean"]) for whose in ("shared", "personal"))
    others = _number(late["others"]["personal"][what]["mean"])
    if not late["adaptation"]:
        return (
            f"{summary['scheme']}: {count} from round {late['joined']}: shared {what} {shared}, "
            f"personal {personal}; the others' personal {others}"
        )
    steps = " ".join(_number(entry[f"personal_{what}"]) for entry in late["adaptation"])
    last = len(late["adaptation"]) - 1
    return (
        f"{summary['scheme']}: {count} after training: shared {what} {shared}, personal after 0 "
        f"to {last} rounds {steps}; the others' personal {others}"
    )


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3e}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
