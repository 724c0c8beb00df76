"""A process that trains one group of runs after the other, and keeps data and recordings.

``python -m bouquet.sweeping.worker`` reads a group a line from standard input and answers on
standard output, a line for each thing that happens. It ends at once when its input does: when who
started it is gone, in whatever way, nobody writes to the folder any more.
"""

import functools
import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bouquet import jobs
from bouquet.core.errors import BadInput, RunFailed
from bouquet.jobs import Plan
from bouquet.storage.events import Event
from bouquet.sweeping import company


@dataclass(frozen=True)
class News:
    """What a worker tells of a run.

    Parameters
    ----------
    kind : str
        ``round``, ``done``, ``failed`` (this run, for good) or ``refused`` (the whole sweep).
    place : int
        The run's place in its group.
    round : int
        The round that ended.
    words : str
        Why it failed.
    """

    kind: str
    place: int = 0
    round: int = 0
    words: str = ""


def train(plans: Sequence[Plan], tell: Callable[[News], None]) -> None:
    """Train a group of runs together, and tell of all that happens."""
    try:
        ready = jobs.prepared(plans, "inline")
    except BadInput as error:
        tell(News("refused", words=str(error)))
        return
    observers = [functools.partial(_tell_round, tell, place) for place in range(len(plans))]
    for place, wrong in enumerate(company.train(ready, observers)):
        match wrong:
            case None:
                tell(News("done", place))
            case RunFailed():
                tell(News("failed", place, words=str(wrong)))
            case BadInput():
                tell(News("refused", place, words=str(wrong)))
            case _:
                raise wrong


def _tell_round(tell: Callable[[News], None], place: int, event: Event) -> None:
    tell(News("round", place, event["round"]))


def to_line(plans: Sequence[Plan]) -> str:
    """A group as a line of text."""
    told = [
        {"values": dict(plan.values), "resume": plan.resume and str(plan.resume)} for plan in plans
    ]
    return json.dumps(told) + "\n"


def from_line(line: str) -> list[Plan]:
    """The group that :func:`to_line` made a line of."""
    return [
        Plan(one["values"], None if one["resume"] is None else Path(one["resume"]))
        for one in json.loads(line)
    ]


def _lines() -> Iterator[str]:
    """The lines of standard input; when it ends, so does the process, whatever it is at."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


def main() -> None:
    """Train what standard input says until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anybody prints is not for who reads the answers
    logging.getLogger("flwr").setLevel(os.environ.get("BOUQUET_LOG", "WARNING"))

    def tell(news: News) -> None:
        told: dict[str, Any] = asdict(news)
        answers.write(json.dumps(told) + "\n")
        answers.flush()

    for line in _lines():
        train(from_line(line), tell)
        tell(News("free"))


if __name__ == "__main__":
    main()
