"""What we use of Flower that it does not promise to keep, all in one place.

Flower's public names are those of ``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp``,
``flwr.serverapp.strategy`` and ``flwr.simulation``; everything else comes from here. ``NAMES`` says
why each is needed. They were seen in Flower 1.39, and ``tests/unit/test_flower_private.py`` looks
at what we rely on: a newer Flower is tried with that file first. A name is imported when it is
used: a device that trains needs none of the command line's.
"""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.cli.build import build_fab_from_disk, build_fab_from_files
    from flwr.cli.constant import (
        ACCESS_TOKEN_STORE_KEY,
        AUTHN_TYPE_STORE_KEY,
        REFRESH_TOKEN_STORE_KEY,
    )
    from flwr.client.grpc_rere_client.connection import grpc_request_response
    from flwr.common.constant import (
        ACCESS_TOKEN_KEY,
        HEARTBEAT_PATIENCE,
        PUBLIC_KEY_HEADER,
        SIGNATURE_HEADER,
        SUPERLINK_NODE_ID,
        TIMESTAMP_HEADER,
        AuthnType,
        ErrorCode,
    )
    from flwr.common.logger import log
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import (
        ListNodesRequest,
        ListRunsRequest,
        RegisterNodeRequest,
        StartRunRequest,
        UnregisterNodeRequest,
    )
    from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.serverapp import Grid
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
    from flwr.supercore.fab import Fab
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectPullError,
        ObjectPushError,
        pull_and_inflate_object_from_tree,
        push_objects,
    )
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
    from flwr.supercore.retry import make_simple_grpc_retry_invoker
    from flwr.supercore.run import Run
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.grid import HttpGrid
    from flwr.supernode.cli import flower_supernode, flwr_clientapp

__all__ = [
    "ACCESS_TOKEN_KEY",
    "ACCESS_TOKEN_STORE_KEY",
    "AUTHN_TYPE_STORE_KEY",
    "HEARTBEAT_PATIENCE",
    "PUBLIC_KEY_HEADER",
    "REFRESH_TOKEN_STORE_KEY",
    "SIGNATURE_HEADER",
    "SUPERLINK_NODE_ID",
    "TASK_TYPE_TO_COMMAND",
    "TIMESTAMP_HEADER",
    "AcquireTaskRequest",
    "AuthnType",
    "ConfirmMessageReceivedResponse",
    "ControlHttpClient",
    "ErrorCode",
    "ExecutionSpec",
    "Fab",
    "FileCredentialStore",
    "HttpGrid",
    "LaunchResult",
    "ListNodesRequest",
    "ListRunsRequest",
    "NoOpControlAuthnPlugin",
    "NodeInfo",
    "ObjectPullError",
    "ObjectPushError",
    "RegisterNodeRequest",
    "Run",
    "RuntimeHttpClient",
    "RuntimeVersionHttpInterceptor",
    "StartRunRequest",
    "SubprocessExecutor",
    "TaskIdentity",
    "UnregisterNodeRequest",
    "build_fab_from_disk",
    "build_fab_from_files",
    "fab_to_proto",
    "flower_superexec",
    "flower_superlink",
    "flower_supernode",
    "flwr_clientapp",
    "get_all_nested_objects",
    "get_object_tree",
    "grpc_request_response",
    "log",
    "make_simple_grpc_retry_invoker",
    "public_key_to_bytes",
    "pull_and_inflate_object_from_tree",
    "push_objects",
    "sign_message",
    "user_config_to_proto",
]

SEEN_IN = "1.39"
# What a SuperNode writes to its log once it is let in. No command and no exit code tells: without
# it `bouquet deploy` could not say which node was refused.
ADMITTED = "SuperNode ID"
# Seconds between two searches of a SuperLink for apps that no longer say they are alive; Flower
# gives them up after minutes.
TIDY_EVERY = 1.0
# Where each name is, and why nothing public will do.
NAMES = {
    "log": ("flwr.common.logger", "our lines stand among Flower's, in its form"),
    "ErrorCode": ("flwr.common.constant", "tells a node that failed from a message that was lost"),
    "SUPERLINK_NODE_ID": ("flwr.common.constant", "whom the inline engine's messages come from"),
    "Run": ("flwr.supercore.run", "the inline engine's Grid must have one"),
    "TaskIdentity": ("flwr.supercore.task_identity", "a Message can only be made with one set"),
    "HttpGrid": ("flwr.superlink.grid", "the one sign that nodes are devices, not simulated"),
    "build_fab_from_files": ("flwr.cli.build", "an app's bundle without a checkout, for deploy"),
    "build_fab_from_disk": ("flwr.cli.build", "what flwr run would send, to compare with"),
    "Fab": ("flwr.supercore.fab", "a bundle as a SuperLink takes it"),
    "fab_to_proto": ("flwr.common.serde", "the same, in a request"),
    "user_config_to_proto": ("flwr.common.serde", "a run's keys in a request"),
    "ListRunsRequest": ("flwr.proto.control_pb2", "how a run on a SuperLink goes on"),
    "RegisterNodeRequest": ("flwr.proto.control_pb2", "let a device's key in, for its clients"),
    "UnregisterNodeRequest": ("flwr.proto.control_pb2", "let it in no more"),
    "ListNodesRequest": ("flwr.proto.control_pb2", "which keys there are"),
    "NodeInfo": ("flwr.proto.node_pb2", "what a SuperLink says of each"),
    "HEARTBEAT_PATIENCE": (
        "flwr.common.constant",
        "how long ago a node gave its last sign of life",
    ),
    "ConfirmMessageReceivedResponse": (
        "flwr.proto.message_pb2",
        "a message is kept until a node has answered it",
    ),
    "StartRunRequest": ("flwr.proto.control_pb2", "start a run and keep its id; flwr run tells it"),
    "ControlHttpClient": ("flwr.supercore.control", "the way to a SuperLink for those requests"),
    "RuntimeVersionHttpInterceptor": (
        "flwr.supercore.interceptors",
        "a SuperLink refuses requests that do not say their version",
    ),
    "public_key_to_bytes": (
        "flwr.supercore.primitives.asymmetric",
        "a key as a SuperLink wants it registered",
    ),
    "ObjectPullError": (
        "flwr.supercore.inflatable.inflatable_utils",
        "what Flower takes for a reply that cannot be had",
    ),
    "sign_message": ("flwr.supercore.primitives.asymmetric", "ask if a node's clock is right"),
    **dict.fromkeys(
        ("PUBLIC_KEY_HEADER", "SIGNATURE_HEADER", "TIMESTAMP_HEADER"),
        ("flwr.common.constant", "the same"),
    ),
    "flower_superexec": ("flwr.supercore.cli", "the command that starts a process a message"),
    "ExecutionSpec": ("flwr.supercore.superexec.executor", "what an executor is to start"),
    "LaunchResult": ("flwr.supercore.superexec.executor", "what it answers"),
    "SubprocessExecutor": ("flwr.supercore.superexec.executor", "the executor ours stands for"),
    "flwr_clientapp": ("flwr.supernode.cli", "what the process of a message does"),
    "flower_supernode": ("flwr.supernode.cli", "the command, with an executor beside it"),
    "flower_superlink": ("flwr.superlink.cli", "the same, and with a token of its owner's"),
    "TASK_TYPE_TO_COMMAND": ("flwr.supercore.constant", "what the SuperLink's executor starts"),
    "NoOpControlAuthnPlugin": (
        "flwr.superlink.auth_plugin",
        "the check of accounts that ours is a stricter one of",
    ),
    "ACCESS_TOKEN_KEY": ("flwr.common.constant", "where that check finds a token"),
    "AuthnType": ("flwr.common.constant", "the kind of login with which flwr shows a token"),
    "FileCredentialStore": (
        "flwr.supercore.credential_store.file_credential_store",
        "where flwr looks for one; flwr login would ask an outside provider",
    ),
    "AcquireTaskRequest": ("flwr.proto.runtime_pb2", "what an executor asks, for tests"),
    "RuntimeHttpClient": ("flwr.supercore.runtime", "how it asks, likewise"),
    "AUTHN_TYPE_STORE_KEY": ("flwr.cli.constant", "under which names it is stored there"),
    "ACCESS_TOKEN_STORE_KEY": ("flwr.cli.constant", "likewise"),
    "REFRESH_TOKEN_STORE_KEY": ("flwr.cli.constant", "likewise"),
    "grpc_request_response": (
        "flwr.client.grpc_rere_client.connection",
        "a node without a process of its own, to measure a SuperLink with many",
    ),
    "make_simple_grpc_retry_invoker": ("flwr.supercore.retry", "the same"),
    "get_object_tree": ("flwr.supercore.inflatable.inflatable_object", "its replies"),
    "get_all_nested_objects": ("flwr.supercore.inflatable.inflatable_object", "the same"),
    "push_objects": ("flwr.supercore.inflatable.inflatable_utils", "the same"),
    "ObjectPushError": (
        "flwr.supercore.inflatable.inflatable_utils",
        "what a SuperLink under load fails with, though it may work the next time",
    ),
    "pull_and_inflate_object_from_tree": (
        "flwr.supercore.inflatable.inflatable_utils",
        "the messages it gets",
    ),
}


def give_id(message: "Message", name: str) -> None:
    """Give a message the id its reply will refer to, as Flower's own grids do.

    There is no public way: Metadata has no setter for it.
    """
    message.metadata.__dict__["_message_id"] = name


def is_deployed(grid: "Grid") -> bool:
    """Whether nodes are devices: whoever has an ``HttpGrid`` has imported it, and it is slow to."""
    home, _ = NAMES["HttpGrid"]
    return home in sys.modules and isinstance(grid, sys.modules[home].HttpGrid)


@contextmanager
def fetching_at_most(grid: "Grid", most: int) -> Iterator[None]:
    """Have replies fetched from a SuperLink up to so many bytes each, and given up beyond.

    A reply comes in pieces, and Flower has no option for how many it takes. It turns the error
    raised here into a message that says the reply is not to be had.
    """
    if not is_deployed(grid):
        yield
        return
    home = import_module("flwr.superlink.grid.http_grid")
    theirs = home.make_pull_object_fn_protobuf
    vars(home)["make_pull_object_fn_protobuf"] = lambda *words, **options: _Fetch(
        theirs(*words, **options), most
    )
    try:
        yield
    finally:
        vars(home)["make_pull_object_fn_protobuf"] = theirs


class _Fetch:
    """Flower's way to a reply's pieces, several at a time, until they are too much together."""

    def __init__(self, piece: Callable[[str], bytes], most: int) -> None:
        self._piece, self._most, self._seen = piece, most, 0
        self._lock = threading.Lock()

    def __call__(self, name: str) -> bytes:
        content = self._piece(name)
        with self._lock:
            self._seen += len(content)
            if self._seen > self._most:
                why = f"the reply is larger than the {self._most} bytes that are due"
                raise __getattr__("ObjectPullError")(name, why)
        return content


def nodes_of(grid: "Grid") -> dict[int, str]:
    """The nodes that are there, and what the SuperLink's owner registered each as."""
    if not is_deployed(grid):
        return dict.fromkeys(grid.get_node_ids(), "")
    grid_with_names: Any = grid
    return {node.node_id: node.name for node in grid_with_names.get_nodes()}


def is_transient(error: Exception) -> bool:
    """Whether a SuperLink that failed may do what it is asked when it is asked again."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
    push_error = import_module(NAMES["ObjectPushError"][0]).ObjectPushError
    return isinstance(error, (httpx.TransportError, push_error))


def replace_executor(executor: object) -> None:
    """Have ``flower-superexec`` start processes with an executor of ours: it has no option."""
    superexec = import_module("flwr.supercore.superexec.run_superexec")
    _replaced(superexec, get_executor=lambda *words, **options: executor)


def replace_account_check(check: object) -> None:
    """Have ``flower-superlink`` ask a check of ours who may start runs: it has no option."""
    superlink = import_module("flwr.superlink.cli.flower_superlink")
    _replaced(superlink, load_control_authn_plugin=lambda: check)


def answer_with(look_at: Callable[[bytes], None], app: Callable[[], Any]) -> None:
    """Have ``flwr-clientapp`` answer with an app of ours: no bundle is unpacked or imported.

    Parameters
    ----------
    look_at : callable
        Is given the bundle that came; what it raises is the reply.
    app : callable
        Gives what answers: an app, or what is called as one.
    """
    clientapp = import_module("flwr.supernode.runtime.run_clientapp")
    _replaced(
        clientapp,
        install_from_fab=lambda content, **options: look_at(content),
        get_load_client_app_fn=lambda **options: lambda *which: app(),
    )


def answer_for_killed_apps() -> None:
    """Have a SuperNode answer for a killed app also if it had not fetched its message yet.

    Flower's answers for those that had. Of others it would wait for a reply for ever, and take no
    message meanwhile.
    """
    state = import_module("flwr.supernode.nodestate.in_memory_nodestate").InMemoryNodeState
    answer = state._on_task_tokens_expired
    if answer.__module__ == __name__:
        return

    def answer_for_all(self: Any, tasks: Any) -> None:
        # Whoever would have fetched them is dead: a node has one message at a time.
        runs = {task.run_id for task in tasks}
        with self.lock_msg_store:
            for name, entry in self.msg_store.items():
                if entry.message.metadata.run_id in runs and not entry.is_retrieved:
                    entry.is_retrieved = True
                    self.record_message_processing_start(name)
        answer(self, tasks)

    state._on_task_tokens_expired = answer_for_all


def _replaced(module: Any, **ours: object) -> None:
    """Put functions of ours in a module of Flower's; one that has none of the name is refused.

    A Flower that does it in another way would do it in its own, unguarded.
    """
    missing = ours.keys() - vars(module).keys()
    if missing:
        raise RuntimeError(f"This Flower has no {', '.join(sorted(missing))}; use {SEEN_IN}.")
    vars(module).update(ours)


def calm_database() -> None:
    """Have a SuperLink's SQLite database used by one thread at a time, and tidied once a second.

    Flower's threads each wait for the lock of the database's file, which nobody hands over: under
    load some wait for longer than SQLite does, and the request fails with "database is locked".
    And every look at how a run goes on, of which each request has one, is a search for runs whose
    app is dead, with two statements that write.
    """
    mixin = import_module("flwr.supercore.sql_mixin").SqlMixin
    state = import_module("flwr.supercore.corestate.sql_corestate").SqlCoreState
    lock, session, tidy = threading.RLock(), mixin.session, state._cleanup_expired_task_tokens
    if session.__module__ == __name__:
        return
    last = -math.inf

    @contextmanager
    def one_at_a_time(self: Any) -> Iterator[Any]:
        with lock, session(self) as found:
            yield found

    def now_and_then(self: Any) -> None:
        nonlocal last
        if time.monotonic() - last > TIDY_EVERY:
            last = time.monotonic()
            tidy(self)

    mixin.session, state._cleanup_expired_task_tokens = one_at_a_time, now_and_then


def tell_of_messages(told: Callable[[int], None]) -> None:
    """Have a SuperLink tell of every message for a node once all its pieces have come.

    A message is put down first, then come its pieces, of several messages together.

    Parameters
    ----------
    told : callable
        Is given the node's id.
    """
    arrivals = _Arrivals(told)
    for home, name in (
        ("in_memory_linkstate", "InMemoryLinkState"),
        ("sql_linkstate", "SqlLinkState"),
    ):
        kind = getattr(import_module(f"flwr.server.superlink.linkstate.{home}"), name)
        if kind.store_object.__module__ != __name__:
            arrivals.follow(kind)


class _Arrivals:
    """Messages on their way into a SuperLink: what is missing, and whose they are."""

    # Of a server app that died on the way nothing more comes.
    MOST = 1000

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told, self._lock = told, threading.Lock()
        self._sessions: dict[str, tuple[set[str], set[int]]] = {}

    def follow(self, kind: Any) -> None:
        """Hear of what comes into a SuperLink's state."""
        store_message, store_object = kind.store_message_and_object_tree, kind.store_object

        def message(state: Any, message: "Message", tree: Any, session: str) -> Any:
            stored, missing = store_message(state, message, tree, session)
            if stored and not message.metadata.reply_to_message_id:
                self._expect(session, message.metadata.dst_node_id, missing)
            return stored, missing

        def piece(state: Any, run: int, session: str, name: str, content: bytes) -> Any:
            stored = store_object(state, run, session, name, content)
            if stored:
                self._expect_no_more(session, name)
            return stored

        kind.store_message_and_object_tree, kind.store_object = message, piece

    def _expect(self, session: str, node: int, missing: Iterable[str]) -> None:
        with self._lock:
            pending, nodes = self._sessions.setdefault(session, (set(), set()))
            pending.update(missing)
            nodes.add(node)
            while len(self._sessions) > self.MOST:
                del self._sessions[next(iter(self._sessions))]
        self._tell(session)

    def _expect_no_more(self, session: str, name: str) -> None:
        with self._lock:
            pending, _ = self._sessions.get(session, (set(), set()))
            pending.discard(name)
        self._tell(session)

    def _tell(self, session: str) -> None:
        with self._lock:
            pending, nodes = self._sessions.get(session, (set(), set()))
            whole = set() if pending else {*nodes}
            if not pending:
                self._sessions.pop(session, None)
        for node in whole:
            self._told(node)


def hand_over_at_once(arrived: threading.Event) -> None:
    """Have Flower's simulation pass messages on as they come; it looks every 0.1 s, unasked.

    When a reply has come, ``arrived`` is set.

    Its own loop is kept: only what it waits on between two looks is another thing.
    """
    engine = import_module("flwr.server.superlink.fleet.vce.vce_api")
    theirs = engine.add_messages_to_queue
    if not isinstance(theirs, _AtOnce):
        vars(engine)["add_messages_to_queue"] = _AtOnce(theirs, arrived)


class _AtOnce:
    """Flower's loop that hands messages to workers, woken by each message."""

    def __init__(self, loop: Any, arrived: threading.Event) -> None:
        self._loop, self._arrived = loop, arrived

    def __call__(self, state: Any, queue: Any, nodes_mapping: Any, f_stop: Any) -> None:
        stop, store, reply = _Stop(f_stop), state.store_message_ins, state.store_message_res

        def stored(message: "Message") -> Any:
            found = store(message)
            stop.woken.set()
            return found

        def replied(message: "Message") -> Any:
            found = reply(message)
            self._arrived.set()
            return found

        state.store_message_ins, state.store_message_res = stored, replied
        self._loop(state, queue, nodes_mapping, stop)


def end_busy_workers() -> None:
    """Have Flower's Ray backend end a worker that is busy before it ends Ray.

    A run that is interrupted has messages under way, and a thread that waits for one with
    ``ray.get`` when Ray is shut down waits forever.
    """
    backend = import_module("flwr.server.superlink.fleet.vce.backend.raybackend").RayBackend
    theirs = backend.terminate
    if theirs.__module__ != __name__:

        def terminate(self: Any) -> None:
            if self.pool:
                _end_busy(self.pool)
            theirs(self)

        backend.terminate = terminate


def _end_busy(pool: Any) -> None:
    import ray

    flower, deadline = logging.getLogger("flwr"), time.monotonic() + 20
    flower.addFilter(_no_error)  # a worker that is ended on purpose is none
    try:
        while (busy := list(pool._future_to_actor.values())) and time.monotonic() < deadline:
            for actor in busy:
                ray.kill(actor)
            time.sleep(0.05)  # the threads that waited for them give them back
    finally:
        flower.removeFilter(_no_error)


def _no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


class _Stop:
    """An event whose wait ends early when woken."""

    def __init__(self, event: threading.Event) -> None:
        self.woken, self.is_set = threading.Event(), event.is_set

    def wait(self, seconds: float) -> None:
        """Wait for a message, or for the time that Flower would."""
        self.woken.wait(seconds)
        self.woken.clear()  # before the next look, which finds whatever came until now


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _ = NAMES[name]
    return getattr(import_module(home), name)
