"""How runs go on, as a person watches them: bars on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
