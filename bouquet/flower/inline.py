"""A Flower Grid whose nodes are threads of this process."""

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from bouquet.flower.exchange import ARRIVED, exchange
from bouquet.flower.private import SUPERLINK_NODE_ID, ErrorCode, Run, TaskIdentity, give_id


def workers() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class InlineGrid(Grid):
    """A Flower Grid whose nodes are threads of this process.

    Parameters
    ----------
    nodes : int
        How many there are.
    app : ClientApp
        What runs on them.
    closed : callable
        Called when the grid is closed: what the app keeps of its nodes can go.
    """

    def __init__(
        self, nodes: int, app: ClientApp, closed: Callable[[], None] = lambda: None
    ) -> None:
        self._app, self._closed = app, closed
        self._run = Run.create_empty(run_id=secrets.randbits(62))
        self._contexts = {
            place + 1: Context(
                run_id=self._run.run_id,
                node_id=place + 1,
                node_config={"partition-id": place, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for place in range(nodes)
        }
        # OpenMP's number of threads belongs to a thread, so each one sets its own.
        self._pool = ThreadPoolExecutor(workers(), "node", torch.set_num_threads, (1,))
        self._replies: dict[str, Future[Message]] = {}
        # Nobody else sees the ids; random ones would ask the system, which may take a millisecond.
        self._ids = map(str, itertools.count(1))
        TaskIdentity.task_id, TaskIdentity.run_id = 1, self._run.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def close(self) -> None:
        """End the threads and forget what the nodes kept."""
        self._pool.shutdown(cancel_futures=True)
        self._closed()

    def set_run(self, run: Run) -> None:
        """Set the run messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run messages belong to."""
        return replace(self._run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message, as Flower's older apps do."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes there are."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Give messages to their nodes."""
        ids = []
        for message in messages:
            one = next(self._ids)
            give_id(message, one)
            self._replies[one] = self._asked(message)
            self._replies[one].add_done_callback(lambda _: ARRIVED.set())
            ids.append(one)
        return ids

    def _asked(self, message: Message) -> Future[Message]:
        return self._pool.submit(self._answer, message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that have arrived."""
        ready = [one for one in message_ids if one in self._replies and self._replies[one].done()]
        return [self._replies.pop(one).result() for one in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return exchange(self, list(messages), timeout or 0.0, threading.Event())

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._app(message=message, context=context)
        except Exception as error:  # a node that fails answers with an error, as in Flower
            reason = f"{type(error).__name__}: {error}"
            failed = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
            return Message(failed, reply_to=message)
