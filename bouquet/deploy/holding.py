"""A node that looks for work waits at the SuperLink until there is some.

Flower's nodes look every three seconds: a round waits up to three for its last node, and a
SuperLink spends most of its time on looks that find nothing. Here such a look is held until a
message for the node has come whole, or for a while.
"""

import threading
from collections.abc import Callable
from typing import Any

from bouquet.deploy.requests import Around

LOOK = "PullMessages"
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

    Parameters
    ----------
    bells : Bells
        Which ring when a message has come.
    seconds : float
        For how long at most.
    """

    def __init__(self, bells: Bells, seconds: float = HOLD) -> None:
        super().__init__(LOOK)
        self._bells, self._seconds = bells, seconds
        self._places = threading.BoundedSemaphore(HELD)

    def around(
        self, answer: Callable[[], Any], request: Any, context: Any, said: dict[str, Any]
    ) -> Any:
        """Look, and if there is nothing, once more when there is."""
        bell = self._bells.silent(request.node.node_id)  # first, or a message could slip through
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
