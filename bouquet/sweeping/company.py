"""Runs that go side by side in one process and train their clients together.

Each run has its own server, messages, folder and checkpoints, in a thread of its own, as if it
were alone. Only where a node would do a chunk's local updates does it wait for the others, and all
chunks are done as one computation (:mod:`bouquet.core.together`).
"""

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from bouquet import problem
from bouquet.client_app.main import answering, forget, prepared
from bouquet.client_app.node import Node
from bouquet.client_app.orders import Order
from bouquet.core import cohort, together
from bouquet.core.together import Asked, NotAlike
from bouquet.flower.inline import InlineGrid
from bouquet.jobs import Ready
from bouquet.server_app.loop import run
from bouquet.storage.events import Observer


class Company:
    """The runs that train together, and who of them is waiting.

    One of them is at work at a time, for models are made with torch's one generator; it has the
    ``turn``, which goes on to the next while it waits.

    Parameters
    ----------
    count : int
        How many there are.
    """

    def __init__(self, count: int) -> None:
        self.turn = threading.Condition()
        self._there = count
        self._asked: dict[int, Asked] = {}
        self._done: dict[int, tuple[Any, Any] | BaseException] = {}
        self._alike = True

    def update(self, place: int, *words: Any) -> tuple[Any, Any]:
        """A chunk's local updates, once everybody who is there has asked for theirs."""
        self._asked[place] = Asked(*words)
        self._serve()
        while place not in self._done:
            self.turn.wait()
        found = self._done.pop(place)
        if isinstance(found, BaseException):
            raise found
        return found

    def leave(self) -> None:
        """A run has ended, and nobody waits for it any more."""
        self._there -= 1
        self._serve()

    def _serve(self) -> None:
        """Once all who are there wait: do the work of those who are least far."""
        if not self._asked or len(self._asked) < self._there:
            return
        least = min(one.work.round for one in self._asked.values())
        turn = sorted(place for place, one in self._asked.items() if one.work.round == least)
        asked = [self._asked.pop(place) for place in turn]
        try:
            self._done |= zip(turn, self._together(asked), strict=True)
        except Exception as error:
            self._done |= dict.fromkeys(turn, error)
        self.turn.notify_all()

    def _together(self, asked: Sequence[Asked]) -> list[tuple[Any, Any]]:
        if len(asked) > 1 and self._alike:
            try:
                return together.update(asked)
            except NotAlike:
                self._alike = False  # nor will they be in the next round
        return [cohort.update(*one) for one in asked]


class Directly(InlineGrid):
    """A Grid whose nodes answer in the thread that asks."""

    def _asked(self, message: Message) -> Future[Message]:
        reply: Future[Message] = Future()
        reply.set_result(self._answer(message))
        return reply


def train(ready: Sequence[Ready], observers: Sequence[Observer]) -> list[BaseException | None]:
    """Train runs together; returns what went wrong with each.

    Parameters
    ----------
    ready : sequence of Ready
        From :func:`bouquet.jobs.prepared`.
    observers : sequence of callable
        Told of each one's rounds.
    """
    company = Company(len(ready))
    wrong: list[BaseException | None] = [None] * len(ready)

    def one(place: int) -> None:
        job = ready[place].job
        app = answering(functools.partial(_accompanied, company, place), ClientApp())
        with company.turn, closing(Directly(job.settings.run.nodes, app)) as grid:
            try:
                run(
                    grid,
                    job.settings,
                    job.folder,
                    engine="inline",
                    resume=job.resume,
                    observe=observers[place],
                )
            except BaseException as error:
                wrong[place] = error
            finally:
                company.leave()

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(ready))]
    cores = torch.get_num_threads()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch.set_num_threads(cores)
    forget()
    problem.forget()
    return wrong


def _accompanied(
    company: Company, place: int, message: Message, context: Context
) -> tuple[Order, Node]:
    order, node = prepared(message, context)
    return order, replace(node, update=functools.partial(company.update, place))
