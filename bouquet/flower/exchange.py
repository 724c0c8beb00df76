"""Messages to nodes, and waiting for their replies."""

import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import WARNING
from typing import TypeVar

from flwr.app import Error, Message
from flwr.serverapp import Grid

from bouquet.core.errors import RunFailed
from bouquet.flower.private import ErrorCode, is_deployed, is_transient, log, nodes_of

Found = TypeVar("Found")

# Seconds between two looks, at least. Each look at a SuperLink is a request to another process;
# a simulation's looks take its nodes' time, and ARRIVED spares it most of them.
PAUSE = 0.02
DEPLOYED_PAUSE = 0.25
# Set by a simulation when one of its nodes has answered.
ARRIVED = threading.Event()
# Seconds after which Flower gives up on a reply that was sent by half.
HALF_SENT = 200.0
# Messages that are sent or fetched together: what a failure can cost.
TOGETHER = 50
# Seconds before a SuperLink that failed is asked again, time after time.
BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0)


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    stop: threading.Event,
    enough: Callable[[Sequence[Message]], bool] = lambda replies: False,
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
    enough : callable
        Whether replies are as many as it takes; then nobody waits for the others.
    """
    if not is_deployed(grid):
        return _replies(grid, messages, timeout, stop, PAUSE, enough)
    online = nodes(grid, stop)
    there = [one for one in messages if one.metadata.dst_node_id in online]
    gone = [one for one in messages if one.metadata.dst_node_id not in online]
    silent = [unanswered(one, "its node is not there") for one in gone]
    return silent + _replies(grid, there, timeout, stop, DEPLOYED_PAUSE, enough)


def nodes(grid: Grid, stop: threading.Event) -> set[int]:
    """The nodes that are there."""
    return set(_patiently(lambda: list(grid.get_node_ids()), stop))


def named_nodes(grid: Grid, stop: threading.Event) -> dict[int, str]:
    """The nodes that are there, and what the SuperLink's owner registered each as."""
    return _patiently(lambda: nodes_of(grid), stop)


def push(grid: Grid, messages: Sequence[Message], stop: threading.Event) -> list[str | None]:
    """Send messages; returns their ids, None for one that could not be sent.

    A SuperLink under load fails now and then. It is asked again, more and more patiently; what it
    does not take in the end costs those nodes their round, and not the run. A message that had
    come through all the same is answered twice, of which a node makes one.
    """
    if not is_deployed(grid):
        return list(grid.push_messages(messages))
    found: list[str | None] = []
    for some in _batches(messages):
        tries = itertools.count()

        def send(some: Sequence[Message] = some, tries: Iterator[int] = tries) -> list[str | None]:
            again = next(tries) > 0
            return list(grid.push_messages([once_more(one) for one in some] if again else some))

        try:
            found += _patiently(send, stop)
        except Exception as error:
            if not is_transient(error):
                raise
            log(WARNING, "%s nodes cannot be reached: %s", len(some), error)
            found += [None] * len(some)
    return found


def pull(grid: Grid, ids: Iterable[str], stop: threading.Event) -> list[Message]:
    """The replies to some messages that have come."""
    if not is_deployed(grid):
        return list(grid.pull_messages(ids))
    replies: list[Message] = []
    for some in _batches(sorted(ids)):
        replies += _patiently(functools.partial(grid.pull_messages, set(some)), stop)
    return replies


def _batches(things: Sequence[Found]) -> Iterator[Sequence[Found]]:
    return (things[start : start + TOGETHER] for start in range(0, len(things), TOGETHER))


def _patiently(ask: Callable[[], Found], stop: threading.Event) -> Found:
    """What a SuperLink answers, if not at once."""
    for seconds in BACK_OFF:
        try:
            return ask()
        except Exception as error:
            if not is_transient(error):
                raise
            log(WARNING, "The SuperLink is asked again in %.1f s: %s", seconds, error)
        pause(seconds, stop)
    return ask()


def _replies(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    stop: threading.Event,
    least: float,
    enough: Callable[[Sequence[Message]], bool],
) -> list[Message]:
    sent = list(zip(push(grid, messages, stop), messages, strict=True))
    waiting = {one: asked for one, asked in sent if one is not None}
    started = time.monotonic()
    replies = [unanswered(asked, "its node cannot be reached") for one, asked in sent if not one]
    again: set[str] = set()
    while waiting:
        # A look can take minutes: Flower waits for a reply that a killed node sent half of. What
        # the others sent meanwhile is found by a last look, however late.
        last = timeout and time.monotonic() - started > timeout
        for reply in pull(grid, waiting, stop):
            which = reply.metadata.reply_to_message_id
            asked = waiting.pop(which)
            if not lost(reply):
                replies.append(_signed(reply, asked))
            elif which in again or asked.metadata.dst_node_id not in nodes(grid, stop):
                replies.append(unanswered(asked, reply.error.reason))
            else:
                (new,) = push(grid, [once_more(asked)], stop)
                if new is None:
                    replies.append(unanswered(asked, reply.error.reason))
                else:
                    waiting[new] = asked
                    again.add(new)
        if last or enough(replies):
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
