"""Messages to nodes, and waiting for their replies."""

import threading
import time
from collections.abc import Sequence

from flwr.app import Error, Message
from flwr.serverapp import Grid

from bouquet.core.errors import RunFailed
from bouquet.flower.private import ErrorCode, is_deployed

# Seconds between two looks, at least. Each look at a SuperLink is a request to another process;
# a simulation's looks take its nodes' time, and ARRIVED spares it most of them.
PAUSE = 0.02
DEPLOYED_PAUSE = 0.25
# Set by a simulation when one of its nodes has answered.
ARRIVED = threading.Event()
# Seconds after which Flower gives up on a reply that was sent by half.
HALF_SENT = 200.0


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    stop: threading.Event,
) -> list[Message]:
    """Send messages and wait for the replies.

    Flower's own ``send_and_receive`` looks every 0.1 s (3 s in a deployment); this
    one looks when a simulation's node has answered, and else often at first and ever more rarely,
    so that it adds 2% at most. A message that a
    node lost, because its app was killed or it was itself and is there again, is sent once more.
    A device that is gone costs the timeout once, not ever: it is not sent what it would not get.

    Parameters
    ----------
    grid : Grid
        Flower's.
    messages : sequence of Message
        One a node.
    timeout : float
        Seconds; 0 for as long as it takes. A reply that comes later is never read.
    stop : Event
        Set when the run is to end at once.
    """
    if not is_deployed(grid):
        return _replies(grid, messages, timeout, stop, PAUSE)
    online = set(grid.get_node_ids())
    there = [one for one in messages if one.metadata.dst_node_id in online]
    gone = [one for one in messages if one.metadata.dst_node_id not in online]
    silent = [unanswered(one, "its node is not there") for one in gone]
    return silent + _replies(grid, there, timeout, stop, DEPLOYED_PAUSE)


def _replies(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    stop: threading.Event,
    least: float,
) -> list[Message]:
    waiting = dict(zip(grid.push_messages(messages), messages, strict=True))
    started = time.monotonic()
    replies: list[Message] = []
    again: set[str] = set()
    while waiting:
        # A look can take minutes: Flower waits for a reply that a killed node sent half of. What
        # the others sent meanwhile is found by a last look, however late.
        last = timeout and time.monotonic() - started > timeout
        for reply in grid.pull_messages(set(waiting)):
            which = reply.metadata.reply_to_message_id
            asked = waiting.pop(which)
            if not lost(reply):
                replies.append(_signed(reply, asked))
            elif which in again or asked.metadata.dst_node_id not in set(grid.get_node_ids()):
                replies.append(unanswered(asked, reply.error.reason))
            else:
                (new,) = grid.push_messages([once_more(asked)])
                waiting[new] = asked
                again.add(new)
        if last:
            break
        if waiting:
            pause(min(max(least, 0.02 * (time.monotonic() - started)), 1.0), stop, ARRIVED)
    return replies


def lost(reply: Message) -> bool:
    """Whether a reply is the SuperLink's or the SuperNode's word that there will be none."""
    return reply.has_error() and reply.error.code in (
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.CLIENT_APP_CRASHED,
    )


def once_more(asked: Message) -> Message:
    """The same message; a node that has done what it asks for answers as it did."""
    data = asked.metadata
    return Message(
        asked.content, data.dst_node_id, data.message_type, ttl=data.ttl, group_id=data.group_id
    )


def unanswered(asked: Message, why: str | None) -> Message:
    """A reply in place of a node that gave none: the SuperLink's own does not name the node."""
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, why), reply_to=asked)


def _signed(reply: Message, asked: Message) -> Message:
    """A reply, unless it comes in the name of another node than the one that was asked."""
    if reply.metadata.src_node_id == asked.metadata.dst_node_id:
        return reply
    return unanswered(asked, reply.error.reason if reply.has_error() else "another node's reply")


def pause(seconds: float, stop: threading.Event, arrived: threading.Event | None = None) -> None:
    """Wait, at most until a reply has arrived, unless the run is to end."""
    if arrived is None:
        stop.wait(seconds)
    else:
        arrived.wait(seconds)
        arrived.clear()  # before the next look, which finds whatever came until now
    if stop.is_set():
        raise RunFailed("The run was interrupted.")
