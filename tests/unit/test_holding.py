"""A look for work that finds nothing waits at the SuperLink until there is something."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from bouquet.deploy import holding
from bouquet.deploy.holding import GOT_IT, REPLY, Bells, HoldLooks
from bouquet.flower.private import _Arrivals

LONG = 60.0


class Link:
    """A SuperLink with work for node 7, or without, that holds looks."""

    def __init__(self, seconds: float = LONG) -> None:
        self.bells, self.work, self.looks = Bells(), list[str](), 0
        self.forgotten, self.ttl = 0, LONG
        self.told_by: Callable[[Any, Any], SimpleNamespace] = self.answer
        self.hold = HoldLooks(self.bells, seconds)
        handler = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.told_by(request, context),
            lambda content: SimpleNamespace(node=SimpleNamespace(node_id=int(content))),
            lambda found: " ".join(one.words for one in found.messages_list).encode(),
        )
        self.server = grpc.server(ThreadPoolExecutor(4), interceptors=[self.hold])
        by_bytes = grpc.unary_unary_rpc_method_handler
        numbered = handler.request_deserializer
        methods = {
            "PullMessages": handler,
            "PushMessages": by_bytes(lambda request, context: b"", numbered),
            "ConfirmMessageReceived": by_bytes(self.forget, numbered, bytes_of),
        }
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("Fleet", methods)]
        )
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def answer(self, request: Any, context: Any) -> SimpleNamespace:
        """What there is for whoever looks."""
        self.looks += 1
        found, self.work = self.work, []
        metadata = SimpleNamespace(ttl=self.ttl)
        messages = [SimpleNamespace(words=one, metadata=metadata) for one in found]
        return SimpleNamespace(messages_list=messages)

    def forget(self, request: Any, context: Any) -> bytes:
        """Throw away what a node has got."""
        self.forgotten += 1
        return b""

    def look(self, node: int = 7) -> Any:
        """What a node will have found, once it has."""
        return self.channel.unary_unary("/Fleet/PullMessages").future(b"%d" % node)

    def say(self, what: str, node: int = 7) -> None:
        """A node has what it was handed, or its reply."""
        self.channel.unary_unary(f"/Fleet/{what}")(b"%d" % node, timeout=20)


def bytes_of(answer: Any) -> bytes:
    """A handler's answer, or one of Flower's."""
    return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())


@pytest.fixture
def links() -> Iterator[Callable[..., Link]]:
    made: list[Link] = []

    def make(*words: Any) -> Link:
        made.append(Link(*words))
        return made[-1]

    yield make
    for link in made:
        link.channel.close()
        link.server.stop(None).wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_look_waits_for_a_message_and_is_handed_it_at_once(links: Callable[..., Link]) -> None:
    link = links()
    look, started = link.look(), time.monotonic()
    until(lambda: link.looks == 1)
    link.bells.ring(8)  # another's
    assert not look.done()
    link.work = ["train"]
    link.bells.ring(7)
    assert look.result(timeout=20) == b"train"
    assert time.monotonic() - started < LONG / 2


def test_a_look_that_finds_something_waits_for_nothing(links: Callable[..., Link]) -> None:
    link = links()
    link.work = ["train"]
    assert link.look().result(timeout=20) == b"train"


def test_a_message_that_comes_during_a_look_is_not_missed(links: Callable[..., Link]) -> None:
    """After the look has found nothing, and before it waits."""
    link = links()

    def late(request: Any, context: Any) -> SimpleNamespace:
        found = link.answer(request, context)
        if link.looks == 1:
            link.work = ["train"]
            link.bells.ring(7)
        return found

    link.told_by = late
    assert link.look().result(timeout=20) == b"train"


def test_a_look_ends_after_a_while(links: Callable[..., Link]) -> None:
    link = links(0.05)
    assert link.look().result(timeout=20) == b""
    assert link.looks == 1


def test_a_node_that_is_gone_is_handed_nothing(links: Callable[..., Link]) -> None:
    link = links()
    look = link.look()
    until(lambda: link.looks == 1)
    link.work = ["train"]
    look.cancel()
    free = link.hold._places
    until(lambda: free._value == holding.HELD)  # the look is over
    time.sleep(0.05)
    assert link.look().result(timeout=20) == b"train"  # it is there again
    assert link.looks == 2


def test_a_node_holds_one_look_at_a_time(links: Callable[..., Link]) -> None:
    """Whoever looks a thousand times takes the place of one."""
    link = links()
    first = link.look()
    until(lambda: link.looks == 1)
    second = link.look()
    assert first.result(timeout=20) == b""
    assert link.looks == 2
    link.work = ["train"]
    link.bells.ring(7)
    assert second.result(timeout=20) == b"train"


def test_what_a_node_has_not_answered_it_is_handed_once_more(links: Callable[..., Link]) -> None:
    """Its connection died in silence, so that it never got it, or it was killed at work."""
    link = links(0.05)
    for died_at_work in (False, True):
        link.work = ["train"]
        assert link.look().result(timeout=20) == b"train"
        if died_at_work:
            link.say(GOT_IT)
        link.say(REPLY, node=8)  # another's
        assert link.forgotten == 0
        assert link.look().result(timeout=20) == b"train"
        assert link.look().result(timeout=20) == b""  # not for ever
    assert link.forgotten == 1


def test_what_a_node_has_answered_it_is_not_handed_again(links: Callable[..., Link]) -> None:
    link = links(0.05)
    link.work = ["train"]
    assert link.look().result(timeout=20) == b"train"
    link.say(GOT_IT)
    assert link.forgotten == 0
    link.say(REPLY)
    assert link.forgotten == 1
    assert link.look().result(timeout=20) == b""


def test_what_nobody_waits_for_any_more_is_not_handed_again(links: Callable[..., Link]) -> None:
    link = links(0.05)
    link.work, link.ttl = ["train"], 0.0
    assert link.look().result(timeout=20) == b"train"
    assert link.look().result(timeout=20) == b""


def test_where_too_many_wait_a_look_ends_at_once(
    links: Callable[..., Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "HELD", 1)
    link = links()
    first = link.look(7)
    until(lambda: link.looks == 1)
    assert link.look(8).result(timeout=20) == b""
    assert not first.done()


class State:
    """What Flower's state of a SuperLink does with messages and their pieces."""

    def __init__(self, missing: list[list[str]]) -> None:
        self.missing = missing

    def store_message_and_object_tree(
        self, message: Any, tree: Any, session: str
    ) -> tuple[bool, list[str]]:
        return (True, self.missing.pop(0)) if self.missing else (False, [])

    def store_object(self, run: int, session: str, name: str, content: bytes) -> bool:
        return content != b"late"


def message(node: int, answers: str = "") -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node, reply_to_message_id=answers))


def test_a_node_is_told_of_once_its_message_is_whole() -> None:
    class Followed(State):
        pass

    told: list[int] = []
    _Arrivals(told.append).follow(Followed)
    state = Followed([["head", "weights"], ["tail"], [], ["reply"]])
    state.store_message_and_object_tree(message(1), None, "a")
    state.store_message_and_object_tree(message(2), None, "a")
    state.store_object(0, "a", "head", b"")
    state.store_object(0, "a", "tail", b"")
    assert told == []
    state.store_object(0, "a", "weights", b"late")  # not taken
    assert told == []
    state.store_object(0, "a", "weights", b"")
    assert sorted(told) == [1, 2]
    state.store_message_and_object_tree(message(3), None, "b")  # all of it is there already
    assert told[2:] == [3]
    state.store_message_and_object_tree(message(9, "1"), None, "c")  # a reply
    state.store_object(0, "c", "reply", b"")
    state.store_message_and_object_tree(message(4), None, "d")  # not taken
    assert told[3:] == []
