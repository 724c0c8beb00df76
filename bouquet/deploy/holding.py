"""A node that looks for work waits at the SuperLink until there is some.

Flower's nodes look every three seconds: a round waits up to three for its last node, and a
SuperLink spends most of its time on looks that find nothing. Here such a look is held until a
message for the node has come whole, or for a while.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bouquet.deploy.requests import Around
from bouquet.flower.private import ConfirmMessageReceivedResponse

LOOK, GOT_IT, REPLY = "PullMessages", "ConfirmMessageReceived", "PushMessages"
# Seconds a look is held: shorter than the pauses after which a node asks if the SuperLink is still
# there (``bouquet.deploy.keepalive``), of which gRPC takes only a few.
HOLD = 15.0
# Each look that is held takes a thread, which waits. Nodes beyond these look as Flower's do.
HELD, OTHERS = 2000, 500
THREADS = HELD + OTHERS


class Bells:
    """A bell for each node that looks for work."""

    def __init__(self) -> None:
        self._lock, self._bells = threading.Lock(), dict[int, threading.Event]()

    def silent(self, node: int) -> threading.Event:
        """A bell for a node's look; an older look of the same node is over."""
        bell = threading.Event()
        with self._lock:
            before = self._bells.get(node)
            self._bells[node] = bell
        if before is not None:
            before.set()
        return bell

    def is_for(self, node: int, bell: threading.Event) -> bool:
        """Whether a bell is the node's, and of no older look."""
        return self._bells.get(node) is bell

    def ring(self, node: int) -> None:
        """A message for a node has come."""
        with self._lock:
            bell = self._bells.get(node)
        if bell is not None:
            bell.set()


@dataclass
class _Given:
    """What a node was handed and has not answered.

    Parameters
    ----------
    found : answer
        To its look.
    until : float
        When nobody waits for it any more.
    confirm : callable or None
        Has Flower forget what the node says it has.
    again : bool
        Whether it was handed a second time.
    """

    found: Any
    until: float
    confirm: Callable[[], Any] | None = None
    again: bool = False


class HoldLooks(Around):
    """Looks for work that find nothing are held.

    A node does one thing at a time. When it looks again before it has answered, it has never got
    what it was handed, because its connection had died in silence, or was killed at work: it is
    handed the same once more, which is kept for as long.

    Parameters
    ----------
    bells : Bells
        Which ring when a message has come.
    seconds : float
        For how long at most.
    """

    def __init__(self, bells: Bells, seconds: float = HOLD) -> None:
        super().__init__({LOOK: self._look, GOT_IT: self._got_it, REPLY: self._reply})
        self._bells, self._seconds = bells, seconds
        self._places = threading.BoundedSemaphore(HELD)
        self._given = dict[int, _Given]()

    def _look(
        self, answer: Callable[[], Any], request: Any, context: Any, said: dict[str, Any]
    ) -> Any:
        node = request.node.node_id
        given = self._given.get(node)
        if given is not None and not given.again and time.monotonic() < given.until:
            given.again = True
            return given.found
        self._forget(node)
        found = self._held(node, answer, context)
        for message in found.messages_list:
            self._given[node] = _Given(found, time.monotonic() + message.metadata.ttl)
        return found

    def _got_it(
        self, answer: Callable[[], Any], request: Any, context: Any, said: dict[str, Any]
    ) -> Any:
        given = self._given.get(request.node.node_id)
        if given is None:
            return answer()
        given.confirm = answer
        return ConfirmMessageReceivedResponse()

    def _reply(
        self, answer: Callable[[], Any], request: Any, context: Any, said: dict[str, Any]
    ) -> Any:
        found = answer()
        self._forget(request.node.node_id)
        return found

    def _forget(self, node: int) -> None:
        given = self._given.pop(node, None)
        if given is not None and given.confirm is not None:
            with suppress(Exception):  # of a run that has ended, all is forgotten already
                given.confirm()

    def _held(self, node: int, answer: Callable[[], Any], context: Any) -> Any:
        """What there is; if that is nothing, what there is when the bell rings."""
        bell = self._bells.silent(node)  # first, or a message could slip through
        found = answer()
        if found.messages_list or not self._places.acquire(blocking=False):
            return found
        try:
            # Called at once for a node that is gone already; it is handed no message that it
            # would not get.
            alive = context.add_callback(bell.set)
            rang = alive and bell.wait(self._seconds)
        finally:
            self._places.release()
        handed = rang and context.is_active() and self._bells.is_for(node, bell)
        return answer() if handed else found
