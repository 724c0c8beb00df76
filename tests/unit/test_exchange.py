"""Messages to a SuperLink that fails now and then."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import httpx
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from bouquet.flower import exchange as tried
from bouquet.flower.exchange import exchange
from bouquet.flower.private import HttpGrid, ObjectPushError, TaskIdentity, give_id
from bouquet.server_app.strategy import over_selected

BUSY = httpx.HTTPStatusError(
    "database is locked", request=httpx.Request("POST", "http://a"), response=httpx.Response(500)
)
EXPIRED = ObjectPushError("an object", 1, "a session")
WRONG = httpx.HTTPStatusError(
    "no such run", request=httpx.Request("POST", "http://a"), response=httpx.Response(404)
)


class Link(HttpGrid):
    """A SuperLink whose nodes answer at once, and which fails as it is told to."""

    def __init__(self, nodes: int, fails: Callable[[str, Sequence[int]], Exception | None]) -> None:
        self.nodes, self.fails = range(1, nodes + 1), fails
        self.sent: list[int] = []
        self._waiting: dict[str, Message] = {}

    def _perhaps_fail(self, what: str, whom: Sequence[int] = ()) -> None:
        error = self.fails(what, whom)
        if error is not None:
            raise error

    def get_node_ids(self) -> Iterable[int]:
        self._perhaps_fail("nodes")
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self._perhaps_fail("push", [one.metadata.dst_node_id for one in messages])
        for one in messages:
            self.sent.append(one.metadata.dst_node_id)
            give_id(one, f"{len(self.sent)}")
            self._waiting[one.metadata.message_id] = one
        return [one.metadata.message_id for one in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._perhaps_fail("pull")
        found = []
        for one in message_ids:
            asked = self._waiting[one]
            TaskIdentity.node_id = asked.metadata.dst_node_id
            found.append(Message(RecordDict(), reply_to=asked))
        return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tried, "BACK_OFF", (0.0, 0.0))
    known = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
    yield
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = known


def messages(nodes: int) -> list[Message]:
    TaskIdentity.node_id = 1
    content = RecordDict({"note": ConfigRecord()})
    return [Message(content, node, MessageType.TRAIN, ttl=60) for node in range(1, nodes + 1)]


def answered(replies: Iterable[Message]) -> set[int]:
    return {one.metadata.src_node_id for one in replies if not one.has_error()}


@pytest.mark.parametrize("error", [BUSY, EXPIRED, httpx.ReadTimeout("too slow")])
@pytest.mark.parametrize("what", ["nodes", "push", "pull"])
def test_what_fails_once_is_asked_again(what: str, error: Exception) -> None:
    failures = [error, error]
    link = Link(3, lambda kind, whom: failures.pop() if kind == what and failures else None)
    assert answered(exchange(link, messages(3), 60, threading.Event())) == {1, 2, 3}
    assert link.sent == [1, 2, 3]
    assert not failures


def test_what_can_never_be_is_not_tried_again() -> None:
    link = Link(1, lambda kind, whom: WRONG if kind == "push" else None)
    with pytest.raises(httpx.HTTPStatusError, match="no such run"):
        exchange(link, messages(1), 60, threading.Event())


def test_nodes_that_cannot_be_reached_cost_their_round_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tried, "TOGETHER", 2)
    link = Link(5, lambda kind, whom: BUSY if 3 in whom else None)
    replies = exchange(link, messages(5), 60, threading.Event())
    assert answered(replies) == {1, 2, 5}
    silent = {one.metadata.src_node_id: one.error.reason for one in replies if one.has_error()}
    assert silent == dict.fromkeys((3, 4), "its node cannot be reached")


def test_an_interrupted_run_does_not_wait_for_the_superlink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tried, "BACK_OFF", (60.0,))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Exception, match="interrupted"):
        exchange(Link(1, lambda kind, whom: BUSY), messages(1), 60, stop)


def test_nobody_waits_for_more_than_enough() -> None:
    link = Link(4, lambda kind, whom: None)
    late = {3, 4}
    theirs = link.pull_messages
    link.pull_messages = lambda ids: [  # type: ignore[method-assign, assignment]
        one for one in theirs(ids) if one.metadata.src_node_id not in late
    ]
    replies = exchange(
        link, messages(4), 60, threading.Event(), lambda found: len(answered(found)) >= 2
    )
    assert answered(replies) == {1, 2}


@pytest.mark.parametrize(
    ("wanted", "factor", "asked"), [(10, 1.0, 10), (10, 1.1, 11), (10, 1.25, 13), (0, 1.3, 0)]
)
def test_so_many_times_as_many_are_asked(wanted: int, factor: float, asked: int) -> None:
    assert over_selected(wanted, factor) == asked
