"""A run's numbers for TensorBoard."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.core.errors import BadInput
from bouquet.core.measure import prefix
from bouquet.storage.events import Event, Observer
from bouquet.storage.history import PERSONAL, Line, parse_line
from bouquet.storage.runs import number, read_events
from bouquet.watch.live import Tail


def check_installed() -> None:
    """Say so where TensorBoard is missing, before any work is done for it."""
    if find_spec("tensorboard") is None:
        raise BadInput(
            "--tensorboard needs the package tensorboard, which is not installed: "
            "pip install 'bouquet[tensorboard]'."
        )


@contextmanager
def tensorboard(run: Path) -> Iterator[Observer]:
    """Write a run's rounds to ``tensorboard/`` in its folder as they end.

    Yields a function to be told of each. A run that goes on replaces the rounds it undoes, and one
    that had no such files before gets all its rounds.
    """
    from torch.utils.tensorboard.writer import SummaryWriter

    folder, tail = run / "tensorboard", Tail(run / "history.jsonl")
    lines: dict[int, Line] = {}
    writers: list[SummaryWriter] = []

    def observe(event: Event) -> None:
        lines.update({line.round: line for line in filter(None, map(parse_line, tail.read()[1]))})
        events = [event]
        if not writers:  # not earlier: a run that is refused leaves nothing behind
            if not folder.exists():
                past = read_events(run / "events.jsonl")
                events = [one for one in past if one["round"] < event["round"]] + events
            purge = events[0]["round"]
            writers.append(SummaryWriter(str(folder), purge_step=purge))
        for one in events:
            _write(writers[0], one, lines.pop(one["round"], None))
        writers[0].flush()

    try:
        yield observe
    finally:
        for writer in writers:
            writer.close()


def scalars(event: Event) -> dict[str, float]:
    """A round's numbers by TensorBoard's tags; what is not finite is left out."""
    values: dict[str, Any] = {}
    for name, value in event["metrics"].items():  # personal_accuracy_p10, train_personal_accuracy
        part = prefix("train") if name.startswith(prefix("train")) else ""
        whose, what, *end = name.removeprefix(part).split("_")
        values[f"{what}/{part}{'_'.join([whose, *end])}"] = value
    values |= {f"round/{name}": event.get(name) for name in ("seconds", "bytes_up", "bytes_down")}
    values |= {f"round/{name}": len(event[name]) for name in ("clients", "failures")}
    known = {tag: number(value) for tag, value in values.items()}
    return {tag: value for tag, value in known.items() if value is not None}


def _write(writer: Any, event: Event, line: Line | None) -> None:
    for tag, value in scalars(event).items():
        writer.add_scalar(tag, value, event["round"], event.get("time"))
    for name in PERSONAL if line else ():
        column = line.columns.get(name) if line else None
        if column is not None and np.isfinite(column).any():
            known = column[np.isfinite(column)]
            writer.add_histogram(f"personal/{name}", known, event["round"])
            writer.add_scalar(f"personal/{name}_median", float(np.median(known)), event["round"])
