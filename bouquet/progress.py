"""How runs go on, as a person watches them: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from bouquet.storage.events import Event, Observer, telling

err = Console(stderr=True)


@contextmanager
def progress(quiet: bool = False) -> Iterator[Callable[[str, int, int, str], Observer]]:
    """Show the progress of runs: bars on a terminal, plain lines elsewhere, or nothing.

    Yields a function of a run's name, its rounds, how many are done already, and a note that tells
    it from its like.
    """
    if quiet:
        yield lambda title, rounds, done, note: lambda event: None
        return
    if not err.is_terminal:
        yield lambda title, rounds, done, note: _lines(rounds, note)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=10, table_column=Column(no_wrap=True)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _Words("{task.fields[words]}", table_column=Column()),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=err) as bars:

        def follow(title: str, rounds: int, done: int, note: str) -> Observer:
            bar = bars.add_task(title + note, total=rounds, completed=done, words="waiting")
            words = telling(brief=True)
            return lambda event: bars.update(
                bar,
                description=event["stage"] + note,
                completed=event["round"],
                words=words(event),
            )

        yield follow


class _Words(TextColumn):
    """What a narrow terminal cuts short, rather than the bar or the round."""

    def render(self, task: Task) -> Text:
        words = super().render(task)
        words.no_wrap, words.overflow = True, "ellipsis"
        return words


def _lines(rounds: int, note: str) -> Observer:
    """A line for each round."""
    words = telling()

    def tell(event: Event) -> None:
        line = f"{event['stage']}{note} round {event['round']}/{rounds} {words(event)}"
        err.print(line, highlight=False, soft_wrap=True)

    return tell


@dataclass
class Overall:
    """How far many runs are, as one bar.

    Parameters
    ----------
    runs, rounds : int
        How many there are in all.
    show : callable
        Told of every change, with a word about a run that has just ended.
    """

    runs: int
    rounds: int
    show: Callable[["Overall", str], None] = lambda how_far, words: None
    ended: int = 0
    before: int = 0  # rounds that were done already
    _at: dict[str, int] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The rounds that are."""
        return sum(self._at.values())

    def at(self, name: str, round_: int) -> None:
        """A run has ended a round."""
        self._at[name] = round_
        self.show(self, "")

    def end(self, name: str, rounds: int, words: str = "") -> None:
        """A run has ended."""
        self._at[name] = rounds
        self.ended += 1
        self.show(self, f"{name} {words}".strip())

    def skip(self, name: str, rounds: int) -> None:
        """A run had ended before."""
        self.before += rounds - self._at.get(name, 0)
        self._at[name] = rounds
        self.ended += 1
        self.show(self, "")


@contextmanager
def overall(runs: int, rounds: int, quiet: bool = False) -> Iterator[Overall]:
    """Show how far many runs are: a bar on a terminal, a line for each that ends elsewhere."""
    if quiet:
        yield Overall(runs, rounds)
        return
    if not err.is_terminal:
        yield Overall(runs, rounds, _overall_lines())
        return
    columns = (
        TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=24, table_column=Column(no_wrap=True)),
        TextColumn("{task.percentage:>3.0f}%", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        _Words("{task.fields[words]}", table_column=Column()),
    )
    # Schemes take unequally long, so that the speed of the last seconds says little.
    with Progress(*columns, console=err, speed_estimate_period=600) as bars:
        bar = bars.add_task(f"0/{runs} runs", total=rounds, words="")

        def show(how_far: Overall, words: str) -> None:
            bars.update(bar, completed=how_far.done, description=f"{how_far.ended}/{runs} runs")
            if words:
                bars.update(bar, words=words)

        yield Overall(runs, rounds, show)


def _overall_lines() -> Callable[[Overall, str], None]:
    """A line for each run that ends, with the time left at the speed so far."""
    started = time.monotonic()

    def show(how_far: Overall, words: str) -> None:
        if not words:
            return
        here = how_far.done - how_far.before
        spent = time.monotonic() - started
        left = round((how_far.rounds - how_far.done) * spent / max(1, here))
        clock = f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        line = f"{how_far.ended}/{how_far.runs} runs  {words}  {clock} left"
        err.print(line, highlight=False, soft_wrap=True)

    return show
