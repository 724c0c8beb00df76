"""What we rely on in Flower's private names: the first thing to run with a newer Flower."""

import dataclasses
import inspect
import itertools
import logging
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from bouquet.deploy.clock import REFUSAL
from bouquet.flower import private as flower_private
from bouquet.flower.inline import InlineGrid
from bouquet.flower.private import (
    ACCESS_TOKEN_KEY,
    ACCESS_TOKEN_STORE_KEY,
    ADMITTED,
    AUTHN_TYPE_STORE_KEY,
    HEARTBEAT_PATIENCE,
    NAMES,
    PUBLIC_KEY_HEADER,
    REFRESH_TOKEN_STORE_KEY,
    SEEN_IN,
    SIGNATURE_HEADER,
    SUPERLINK_NODE_ID,
    TASK_TYPE_TO_COMMAND,
    TIMESTAMP_HEADER,
    AuthnType,
    ControlHttpClient,
    ErrorCode,
    ExecutionSpec,
    Fab,
    FileCredentialStore,
    HttpGrid,
    LaunchResult,
    ListNodesRequest,
    ListRunsRequest,
    NodeInfo,
    NoOpControlAuthnPlugin,
    ObjectPushError,
    RegisterNodeRequest,
    Run,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    SubprocessExecutor,
    TaskIdentity,
    UnregisterNodeRequest,
    answer_for_killed_apps,
    answer_with,
    build_fab_from_disk,
    build_fab_from_files,
    calm_database,
    end_busy_workers,
    fab_to_proto,
    fetching_at_most,
    flower_superexec,
    flower_superlink,
    flower_supernode,
    flwr_clientapp,
    get_all_nested_objects,
    get_object_tree,
    give_id,
    grpc_request_response,
    hand_over_at_once,
    is_deployed,
    is_transient,
    log,
    make_simple_grpc_retry_invoker,
    nodes_of,
    public_key_to_bytes,
    pull_and_inflate_object_from_tree,
    push_objects,
    replace_account_check,
    replace_executor,
    sign_message,
    tell_of_messages,
    user_config_to_proto,
)

ROOT = Path(__file__).parents[2]
PUBLIC = ("app", "clientapp", "serverapp", "serverapp.strategy", "simulation")


def words_of(something: object) -> set[str]:
    return set(inspect.signature(something).parameters)  # type: ignore[arg-type]


def test_the_version_is_the_one_they_were_seen_in() -> None:
    assert version("flwr").startswith(f"{SEEN_IN}.")


def test_nobody_else_imports_what_is_private() -> None:
    for file in ROOT.rglob("*.py"):
        if file.name == "private.py" or file.relative_to(ROOT).parts[0].startswith("."):
            continue
        for line in file.read_text("utf-8").splitlines():
            found = re.match(r"\s*(?:from|import) flwr\.([\w.]+)", line)
            assert found is None or found[1] in PUBLIC, f"{file}: {line}"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_where_it_says(name: str) -> None:
    assert getattr(flower_private, name) is getattr(import_module(NAMES[name][0]), name)


def test_a_name_that_is_not_listed_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'superlink'"):
        _ = flower_private.superlink


def test_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    log(logging.WARNING, "seen %s", "here")
    assert caplog.record_tuples == [("flwr", logging.WARNING, "seen here")]


def test_error_code() -> None:
    codes = (
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.CLIENT_APP_CRASHED,
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    )
    assert len({Error(code).code for code in codes}) == 3


def test_task_identity_and_superlink_node_id() -> None:
    """A message takes its sender from the identity, and has none without it."""
    TaskIdentity.task_id, TaskIdentity.run_id = 1, 7
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    data = Message(RecordDict(), 5, MessageType.TRAIN).metadata
    assert (data.run_id, data.src_node_id, data.dst_node_id) == (7, SUPERLINK_NODE_ID, 5)


def test_give_id() -> None:
    """A reply refers to the message by the id it was given."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, SUPERLINK_NODE_ID
    asked = Message(RecordDict(), 5, MessageType.TRAIN)
    give_id(asked, "one")
    reply = Message(RecordDict(), reply_to=asked)
    assert (reply.metadata.reply_to_message_id, reply.metadata.src_node_id) == ("one", 5)


def test_run() -> None:
    assert dataclasses.replace(Run.create_empty(run_id=7)).run_id == 7


def test_http_grid() -> None:
    from flwr.serverapp import Grid

    assert issubclass(HttpGrid, Grid)
    assert is_deployed(HttpGrid.__new__(HttpGrid))
    assert not is_deployed(InlineGrid.__new__(InlineGrid))


def test_a_simulation_does_not_import_what_only_a_deployment_needs() -> None:
    """``is_deployed`` is asked in every exchange, and HttpGrid is slow to import."""
    code = (
        "import sys, bouquet.engines; from bouquet.flower.private import is_deployed;"
        "assert not is_deployed(object()); assert 'flwr.superlink.grid' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_is_transient() -> None:
    assert is_transient(ObjectPushError("an object", 1, "a session"))
    assert not is_transient(ValueError("a mistake of ours"))


def test_tell_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a SuperLink's state is told of messages, and in which order of words."""
    said = {
        "store_message_and_object_tree": ["self", "message", "object_tree", "session_id"],
        "store_object": ["self", "run_id", "session_id", "object_id", "object_content"],
    }
    names = {"in_memory_linkstate": "InMemoryLinkState", "sql_linkstate": "SqlLinkState"}
    kinds = [
        getattr(import_module(f"flwr.server.superlink.linkstate.{home}"), name)
        for home, name in names.items()
    ]
    for kind, (method, words) in itertools.product(kinds, said.items()):
        assert list(inspect.signature(getattr(kind, method)).parameters) == words
        monkeypatch.setattr(kind, method, getattr(kind, method))
    tell_of_messages(print)
    ours = [kind.store_object for kind in kinds]
    assert {one.__module__ for one in ours} == {flower_private.__name__}
    tell_of_messages(print)  # once is enough
    assert [kind.store_object for kind in kinds] == ours


def test_calm_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is in the database at a time, also with sessions in sessions."""
    mixin = import_module("flwr.supercore.sql_mixin").SqlMixin
    state = import_module("flwr.supercore.corestate.sql_corestate").SqlCoreState
    monkeypatch.setattr(mixin, "session", mixin.session)
    tidied: list[object] = []
    monkeypatch.setattr(state, "_cleanup_expired_task_tokens", tidied.append)
    monkeypatch.setattr(flower_private, "TIDY_EVERY", 3600.0)
    calm_database()
    calm_database()  # once is enough
    store = import_module("flwr.supercore.object_store.sql_object_store").SqlObjectStore(":memory:")
    store.initialize()
    inside, most = threading.Semaphore(0), []

    def use(number: int) -> None:
        with store.session(), store.session():
            inside.release()
            most.append(inside._value)
            time.sleep(0.01)
            inside.acquire()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(8)))
    assert most == [1] * 8
    for one in range(3):
        state._cleanup_expired_task_tokens(one)
    assert tidied == [0]


@pytest.mark.parametrize("fetched", [True, False])
def test_a_node_answers_for_a_killed_app(monkeypatch: pytest.MonkeyPatch, fetched: bool) -> None:
    """Whether the app was killed before it had fetched the message or after."""
    home = import_module("flwr.supernode.nodestate.in_memory_nodestate")
    store = import_module("flwr.supercore.object_store.in_memory_object_store")
    kind = home.InMemoryNodeState
    monkeypatch.setattr(kind, "_on_task_tokens_expired", kind._on_task_tokens_expired)
    for what in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, what, 1)
    answer_for_killed_apps()
    answer_for_killed_apps()  # once is enough
    node = kind(store.InMemoryObjectStore())
    task = node.create_task(task_type="flwr-clientapp", run_id=1, fab_hash="")
    message = Message(RecordDict(), dst_node_id=3, message_type=MessageType.TRAIN)
    give_id(message, "asked")
    node.store_message(message)
    assert node.claim_task(task)
    assert node.activate_task(task)
    if fetched:
        assert node.get_messages(is_reply=False)
        node.record_message_processing_start("asked")
    assert not node.get_messages(is_reply=True)
    for record in node.task_token_store.values():  # no heartbeat for long
        record.active_until -= timedelta(hours=1)
    (reply,) = node.get_messages(is_reply=True)
    assert reply.metadata.reply_to_message_id == "asked"
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert node.get_message_processing_duration("asked") >= 0


def test_how_a_node_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperLink that refuses a time says so in these words, before it looks at anything else."""
    module = import_module("flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor")
    source = inspect.getsource(module.NodeAuthServerInterceptor.intercept_service)
    assert f'"{REFUSAL}"' in source
    assert source.index(REFUSAL) < source.index(
        "continuation(handler_call_details)\n        return self"
    )
    for header in (PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER):
        assert header.startswith("flwr-")
    key = ec.generate_private_key(ec.SECP384R1())
    key.public_key().verify(sign_message(key, b"now"), b"now", ec.ECDSA(hashes.SHA256()))


def test_what_a_light_node_needs() -> None:
    """A benchmark's nodes speak the Fleet API without a process each."""
    assert words_of(grpc_request_response) >= {
        "server_address",
        "insecure",
        "retry_invoker",
        "root_certificates",
        "authentication_keys",
    }
    assert not words_of(make_simple_grpc_retry_invoker)
    assert words_of(push_objects) >= {"objects", "push_object_fn", "object_ids_to_push"}
    assert words_of(pull_and_inflate_object_from_tree) >= {"object_tree", "return_type"}
    assert len(words_of(get_object_tree)) == len(words_of(get_all_nested_objects)) == 1
    assert not words_of(flower_superlink)


def test_hand_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's loop looks as soon as a message is stored, and still ends when told to."""
    engine = import_module("flwr.server.superlink.fleet.vce.vce_api")
    assert words_of(engine.add_messages_to_queue) == {"state", "queue", "nodes_mapping", "f_stop"}
    theirs = engine.add_messages_to_queue  # or ours around it, if something here ran on Ray before
    source = inspect.getsource(getattr(theirs, "_loop", theirs))
    assert set(re.findall(r"f_stop\.(\w+)", source)) == {"is_set", "wait"}
    assert {"store_message_ins", "store_message_res", "get_message_ins"} <= set(
        dir(engine.LinkState)
    )
    monkeypatch.setattr(engine, "add_messages_to_queue", _hour_long_looks)
    arrived = threading.Event()
    hand_over_at_once(arrived)
    hand_over_at_once(arrived)  # once is enough
    state, queue, stop = _State(), Queue[str](), threading.Event()
    loop = threading.Thread(target=engine.add_messages_to_queue, args=(state, queue, {5: 0}, stop))
    loop.start()
    assert state.looked.wait(20)
    state.store_message_ins("first")
    assert queue.get(timeout=20) == "first"
    state.store_message_ins("second")
    assert queue.get(timeout=20) == "second"
    assert not arrived.is_set()
    state.store_message_res("reply")
    assert arrived.is_set()
    stop.set()
    state.store_message_ins("wakes it once more")
    loop.join(20)
    assert not loop.is_alive()


def test_end_busy_workers() -> None:
    """A thread that waits for a worker's reply gets an error when the backend ends, at once."""
    end_busy_workers()
    end_busy_workers()  # once is enough
    home = import_module("flwr.server.superlink.fleet.vce.backend.raybackend")
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    backend = home.RayBackend({"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1}})
    backend.build(lambda: time.sleep(3600))  # an app that is loaded for an hour
    failures: list[Exception] = []

    def ask() -> None:
        try:
            backend.process_message(Message(RecordDict(), 5, MessageType.TRAIN), context)
        except Exception as failure:
            failures.append(failure)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    while not backend.pool._future_to_actor:
        time.sleep(0.01)
    backend.terminate()
    asking.join(30)
    assert not asking.is_alive()
    assert type(failures[0]).__name__ == "ActorDiedError"


class _State:
    """Messages that wait, as Flower's LinkState keeps them."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.looked = threading.Event()

    def store_message_ins(self, message: str) -> None:
        self.stored.append(message)

    def store_message_res(self, message: str) -> None:
        pass

    def get_message_ins(self, node_id: int, limit: int) -> list[str]:
        self.looked.set()
        found, self.stored = self.stored[:limit], self.stored[limit:]
        return found


def _hour_long_looks(state: Any, queue: Any, nodes_mapping: Any, f_stop: Any) -> None:
    """Flower's loop, with a pause that nobody would sit through."""
    while not f_stop.is_set():
        for node in nodes_mapping:
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)
        f_stop.wait(3600)


def test_a_bundle_of_files_is_the_one_of_the_folder(tmp_path: Path) -> None:
    """Of ``build_fab_from_files``, ``build_fab_from_disk``, ``Fab`` and ``fab_to_proto``."""
    project = (
        '[project]\nname = "a"\nversion = "1"\n[tool.flwr.app]\npublisher = "b"\n'
        '[tool.flwr.app.components]\nserverapp = "s:app"\nclientapp = "s:app"\n'
    )
    files = {"pyproject.toml": project.encode(), "s.py": b"app = None\n"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    bundle, _ = build_fab_from_files(files)
    assert bundle == build_fab_from_disk(tmp_path)
    assert fab_to_proto(Fab("hash", bundle, {})).content == bundle


def test_user_config_to_proto() -> None:
    told = user_config_to_proto({"scheme": "apfl", "lr": 0.1, "rounds": 2, "resume": False})
    assert told["scheme"].string == "apfl"
    assert (told["lr"].double, told["rounds"].sint64, told["resume"].bool) == (0.1, 2, False)


def test_requests() -> None:
    key = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    assert RegisterNodeRequest(public_key=key).public_key == key
    assert ListRunsRequest(run_id=7).run_id == 7
    assert {"fab", "override_config"} <= set(StartRunRequest.DESCRIPTOR.fields_by_name)


def test_control_http_client() -> None:
    told = {"insecure", "root_certificates", "interceptors"}
    assert told <= words_of(ControlHttpClient.from_server_address)
    assert RuntimeVersionHttpInterceptor(component_name="flwr CLI")


def test_executor() -> None:
    """What an executor is told and answers."""
    fields = {field.name for field in dataclasses.fields(ExecutionSpec)}
    told = {"runtime_api_address", "token", "insecure", "root_certificates_path", "parent_pid"}
    assert told <= fields
    assert words_of(SubprocessExecutor.launch) == {"self", "spec"}
    assert LaunchResult.accepted() != LaunchResult.failed()


def test_replace_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    superexec = import_module("flwr.supercore.superexec.run_superexec")
    monkeypatch.setattr(superexec, "get_executor", superexec.get_executor)
    ours = object()
    replace_executor(ours)
    assert superexec.get_executor("any", words=1) is ours
    assert "get_executor(" in inspect.getsource(superexec.run_superexec)


def test_replace_account_check(monkeypatch: pytest.MonkeyPatch) -> None:
    superlink = import_module("flwr.superlink.cli.flower_superlink")
    name = "load_control_authn_plugin"
    monkeypatch.setattr(superlink, name, getattr(superlink, name))
    ours = object()
    replace_account_check(ours)
    assert superlink.load_control_authn_plugin() is ours
    assert f"authn_plugin = {name}()" in inspect.getsource(
        superlink._parse_superlink_lifespan_config
    )


def test_answer_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two names are all that touches a bundle, and ours is asked before the app is loaded."""
    clientapp = import_module("flwr.supernode.runtime.run_clientapp")
    names = ("install_from_fab", "get_load_client_app_fn")
    for name in names:
        monkeypatch.setattr(clientapp, name, getattr(clientapp, name))
    app, seen = ClientApp(), list[bytes]()
    answer_with(seen.append, lambda: app)
    clientapp.install_from_fab(b"bundle", skip_prompt=True)
    load = clientapp.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert seen == [b"bundle"]
    assert load("publisher/name", "1", "hash") is app
    source = inspect.getsource(clientapp.run_clientapp)
    assert re.findall(r"fab\.content", source) == ["fab.content"]
    assert source.index(f"{names[0]}(fab.content") < source.index(f"{names[1]}(")


def test_a_flower_that_has_no_such_name_is_not_run_unguarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("flwr.supernode.runtime.run_clientapp.install_from_fab")
    with pytest.raises(RuntimeError, match="no install_from_fab"):
        answer_with(lambda bundle: None, ClientApp)


def test_what_the_executor_of_a_superlink_starts() -> None:
    assert "flwr-serverapp" in TASK_TYPE_TO_COMMAND.values()
    task = import_module("flwr.superlink.cli.flwr_serverapp")
    parsed = task._parse_args_run_flwr_serverapp().parse_args(["--token-file", "f", "--insecure"])
    assert parsed.token_file == "f"


def test_a_token_in_the_store_is_one_that_flwr_shows(tmp_path: Path) -> None:
    """Of the names of a login, and of the check that a SuperLink makes."""
    cli = import_module("flwr.cli.auth_plugin")
    store = FileCredentialStore(tmp_path / "credentials.yaml")
    for key in (ACCESS_TOKEN_STORE_KEY, REFRESH_TOKEN_STORE_KEY):
        store.set(key % "host:1", b"token")
    store.set(AUTHN_TYPE_STORE_KEY % "host:1", AuthnType.OIDC.encode())
    login = cli.get_cli_plugin_class(AuthnType.OIDC)("host:1")
    login.store = store
    login.load_tokens()
    shown = login.write_tokens_to_metadata([])
    assert (ACCESS_TOKEN_KEY, "token") in shown
    assert NoOpControlAuthnPlugin().validate_tokens_in_metadata(shown)[0]


@pytest.mark.parametrize(
    "command", [flower_superexec, flwr_clientapp, flower_supernode, flower_superlink]
)
def test_commands_take_their_words_from_the_command_line(command: object) -> None:
    assert not words_of(command)
    home = inspect.getmodule(command)
    assert home is not None
    assert "parse_args()" in inspect.getsource(home)


def test_admitted() -> None:
    """Only a SuperNode's source tells without starting one; tests/edge start some."""
    from importlib.util import find_spec

    found = find_spec("flwr.supernode.start_client_internal")
    assert found is not None
    assert found.origin is not None
    assert f'log(INFO, "{ADMITTED}' in Path(found.origin).read_text("utf-8")


def test_a_registered_name_comes_with_the_node() -> None:
    """What a key was registered as, by the SuperLink's owner, is what the server app is told."""
    asked = RegisterNodeRequest(public_key=b"key", name="clients:north")
    told = NodeInfo(node_id=7, name=asked.name, status="online", online_until=90.0)
    runtime = import_module("flwr.proto.runtime_pb2")

    class SuperLink:
        GetNodes = staticmethod(lambda request: runtime.GetNodesResponse(nodes=[told]))

    grid = HttpGrid(token="a")
    grid._client = SuperLink()  # type: ignore[assignment]
    assert nodes_of(grid) == {7: "clients:north"}
    assert HEARTBEAT_PATIENCE * 30 == 60  # the minute that docs/adr/0012 speaks of


def test_keys_are_listed_and_sent_away() -> None:
    assert (
        "nodes_info"
        in import_module("flwr.proto.control_pb2").ListNodesResponse.DESCRIPTOR.fields_by_name
    )
    assert ListNodesRequest() is not None
    assert UnregisterNodeRequest(node_id=7).node_id == 7


def test_a_reply_is_fetched_up_to_a_size_and_given_up_beyond() -> None:
    """With Flower's own grid, whose SuperLink is played: three pieces of 1000 bytes."""
    proto = import_module("flwr.proto.message_pb2")
    runtime = import_module("flwr.proto.runtime_pb2")
    tree = proto.ObjectTree(object_id="0", children=[proto.ObjectTree(object_id=n) for n in "12"])
    reply = proto.Message(metadata=proto.Metadata(message_id="0", reply_to_message_id="asked"))

    class SuperLink:
        PullMessages = staticmethod(
            lambda request: runtime.PullAppMessagesResponse(
                messages_list=[reply], message_object_trees=[tree]
            )
        )
        PullObject = staticmethod(
            lambda request: proto.PullObjectResponse(
                object_found=True, object_available=True, object_content=bytes(1000)
            )
        )

    grid = HttpGrid(token="a")
    grid._run, grid._client = Run.create_empty(1), SuperLink()  # type: ignore[assignment]
    with fetching_at_most(grid, 2500):
        (found,) = grid.pull_messages(["asked"])
    assert found.metadata.reply_to_message_id == "asked"
    assert found.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert "larger than the 2500 bytes that are due" in str(found.error.reason)
    # As large as it may be, it is fetched whole, and Flower looks at what it is.
    with fetching_at_most(grid, 3000), pytest.raises(Exception, match=r"(?i)object|unpack|decode"):
        grid.pull_messages(["asked"])
