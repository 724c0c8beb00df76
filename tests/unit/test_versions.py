"""Nodes say which Bouquet they run, and the SuperLink remembers what those say that it lets in."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from bouquet.deploy.certificates import make_certificates
from bouquet.deploy.requests import ask_through, serve_through
from bouquet.deploy.versions import FILE, HEADER, NoteVersion, TellVersion, versions

METHOD = "/flwr.proto.Fleet/ActivateNode"
KNOWN, STRANGER = b"known", b"stranger"


def activate(key: bytes, context: Any) -> SimpleNamespace:
    """What a SuperLink does with a node that connects."""
    if key == STRANGER:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "not registered")
    return SimpleNamespace(node_id=7)


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that notes versions in the test's folder."""
    for name in ("server", "secure_channel"):
        monkeypatch.setattr(grpc, name, getattr(grpc, name))
    serve_through(2, NoteVersion(tmp_path))
    make_certificates(tmp_path, ["127.0.0.1"])
    handler = grpc.unary_unary_rpc_method_handler(
        activate, bytes, lambda answer: b"%d" % answer.node_id
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("flwr.proto.Fleet", {"ActivateNode": handler})]
    )
    pair = ((tmp_path / "server.key").read_bytes(), (tmp_path / "server.pem").read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def connect(link: str, folder: Path, key: bytes, said: str | None = None) -> None:
    """A node that connects with a key, and says what a node of ours says unless told."""
    credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
    with grpc.secure_channel(link, credentials) as channel:
        words = None if said is None else [(HEADER, said)]
        channel.unary_unary(METHOD)(key, metadata=words, timeout=10)


def test_a_node_that_is_let_in_says_which_bouquet_it_runs(link: str, tmp_path: Path) -> None:
    assert versions(tmp_path) == {}
    connect(link, tmp_path, KNOWN)  # of another make: it says nothing
    assert not versions(tmp_path).get(7)
    ask_through(TellVersion())
    connect(link, tmp_path, KNOWN)
    assert versions(tmp_path) == {7: version("bouquet")}
    (tmp_path / FILE).write_text("{")
    assert versions(tmp_path) == {}
    connect(link, tmp_path, KNOWN)
    assert versions(tmp_path) == {7: version("bouquet")}


def test_what_a_stranger_says_is_not_noted(link: str, tmp_path: Path) -> None:
    with pytest.raises(grpc.RpcError, match="not registered"):
        connect(link, tmp_path, STRANGER, "6.6.6")
    assert versions(tmp_path) == {}


@pytest.mark.parametrize("words", ["[red]x", "9" * 41, "two words", ""])
def test_what_is_no_version_is_not_shown(link: str, tmp_path: Path, words: str) -> None:
    connect(link, tmp_path, KNOWN, words)
    assert not versions(tmp_path).get(7)
