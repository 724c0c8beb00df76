"""A node that looks for work waits at the SuperLink until there is some.

Flower's nodes look every three seconds: a round waits up to three for its last node, and a
SuperLink spends most of its time on looks that find nothing. Here such a look is held until a
message for the node has come whole, or for a while.
"""

import threading
from collections.abc import Callable
from typing import Any

from bouquet.deploy.requests import Around

LOOK, GOT_IT = "PullMessages", "ConfirmMessageReceived"
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
        """The node's bell, which rings from now on; of an older look of its, no more."""
        bell = threading.Event()
        with self._lock:
            self._bells[node] = bell
        return bell

    def ring(self, node: int) -> None:
        """A message for a node has come."""
        with self._lock:
            bell = self._bells.get(node)
        if bell is not None:
            bell.set()


class HoldLooks(Around):
    """Looks for work that find nothing are held.

    A connection may have died in silence while a look was held. So what a node is handed and has
    not confirmed when it looks again, it is handed once more.

    Parameters
    ----------
    bells : Bells
        Which ring when a message has come.
    seconds : float
        For how long at most.
    """

    def __init__(self, bells: Bells, seconds: float = HOLD) -> None:
        super().__init__({LOOK: self._look, GOT_IT: self._got_it})
        self._bells, self._seconds = bells, seconds
        self._places = threading.BoundedSemaphore(HELD)
        self._handed = dict[int, Any]()

    def _look(
        self, answer: Callable[[], Any], request: Any, context: Any, said: dict[str, Any]
    ) -> Any:
        node = request.node.node_id
        if (again := self._handed.pop(node, None)) is not None:
            return again
        found = self._held(node, answer, context)
        if found.messages_list:
            self._handed[node] = found
        return found

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
        return answer() if rang and context.is_active() else found

    def _got_it(
        self, answer: Callable[[], Any], request: Any, context: Any, said: dict[str, Any]
    ) -> Any:
        self._handed.pop(request.node.node_id, None)
        return answer()
