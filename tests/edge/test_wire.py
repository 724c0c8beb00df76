"""Every byte that leaves a node, recorded at the socket."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bouquet.client_app import node as node_module
from bouquet.client_app.node import Node, Result
from bouquet.client_app.stores import read_state
from bouquet.core.trees import Tree
from bouquet.deploy.addresses import HOST
from bouquet.deploy.commands import Host, environment, node_environment
from bouquet.deploy.deployment import hosts_of, pass_on_rounds
from bouquet.deploy.processes import free_port
from bouquet.deploy.superlink import Deployment
from bouquet.flower.private import ControlHttpClient, RuntimeVersionHttpInterceptor
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder
from tests.conftest import Run, kebab

pytestmark = pytest.mark.edge
KEYS: dict[str, Any] = {
    "scheme": "apfl",
    "rounds": 2,
    "nodes": 1,
    "local_steps": 3,
    "data": {"name": "synthetic", "clients": 1},
}


@dataclass
class Sniffer:
    """A TCP proxy that keeps what clients send."""

    target: str
    streams: list[bytearray] = field(default_factory=list)
    dead: int = 0

    def __post_init__(self) -> None:
        self.socket = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        host, _, port = self.target.partition(":")
        with suppress(OSError):  # closed: the test is over
            while True:
                near, _ = self.socket.accept()
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:  # nobody there yet, or no longer
                    near.close()
                    continue
                self.streams.append(bytearray())
                for source, sink, kept in ((near, far, self.streams[-1]), (far, near, None)):
                    number = len(self.streams)
                    words = (source, sink, kept, lambda number=number: number <= self.dead)
                    threading.Thread(target=_pump, args=words, daemon=True).start()

    def forget(self) -> None:
        """Pass nothing on any more of what comes over connections there are, and say nothing."""
        self.dead = len(self.streams)

    def sent(self) -> bytes:
        """All that was sent, and once more as HTTP/2 puts it together."""
        whole = [bytes(stream) for stream in self.streams]
        return b"|".join([*whole, *[data for one in whole for data in bodies(one)]])


def _pump(
    source: socket.socket, sink: socket.socket, kept: bytearray | None, dead: Callable[[], bool]
) -> None:
    with source, sink, suppress(OSError):
        while piece := source.recv(1 << 16):
            if kept is not None:
                kept += piece
            if not dead():
                sink.sendall(piece)


def bodies(stream: bytes) -> Iterator[bytes]:
    """The data of each HTTP/2 stream of a connection, without the frames around it."""
    preface, found = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", dict[int, bytearray]()
    place = len(preface)
    while stream.startswith(preface) and place + 9 <= len(stream):
        size, kind = int.from_bytes(stream[place : place + 3]), stream[place + 3]
        number = int.from_bytes(stream[place + 5 : place + 9])
        place += 9
        if kind == 0:
            found.setdefault(number, bytearray()).extend(stream[place : place + size])
        place += size
    yield from map(bytes, found.values())


@dataclass
class Plain(Deployment):
    """A deployment without TLS, so that what is on the wire can be read."""

    def start_link(self) -> None:
        self.fleet, self.control = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"
        words = ["--insecure", "--host", HOST, "--port", self.control.partition(":")[2]]
        command = ["flower-superlink", *words, "--fleet-api-address", self.fleet]
        self.launch("superlink", command, environment(self.private / "superlink"))
        for address in (self.fleet, self.control):
            self._wait_for(address)

    def start_node(self, host: Host) -> None:
        words = ["--insecure", "--superlink", self.fleet, "--host", HOST, "--port"]
        words += [str(free_port()), "--node-config", host.node_config]
        home = self.private / host.name
        self.launch(host.name, ["flower-supernode", *words], node_environment(home))

    @contextmanager
    def control_api(self) -> Iterator[ControlHttpClient]:
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        client = ControlHttpClient.from_server_address(
            self.control, insecure=True, root_certificates=None, interceptors=[version]
        )
        try:
            yield client
        finally:
            client.close()


@pytest.fixture
def uploads(start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> list[Tree]:
    """What the client uploads in each round, from a simulation with the same seed."""
    found: list[Tree] = []
    train = Node.train

    def watched(self: Node, *words: Any) -> Result:
        result = train(self, *words)
        found.append(result.mean)
        return result

    monkeypatch.setattr(node_module.Node, "train", watched)
    start(**KEYS)
    return found


def pieces(trees: list[Tree], size: int) -> set[bytes]:
    """The bytes of tensors, cut into pieces."""
    whole = [value.numpy().tobytes() for tree in trees for value in tree.values()]
    cut = {one[at : at + size] for one in whole for at in range(0, len(one) - size + 1, size)}
    return {piece for piece in cut if any(piece)}


@pytest.mark.parametrize("kind", [Plain, Deployment], ids=["plain", "tls"])
def test_shared_tensors_leave_a_node_and_personal_ones_do_not(
    tmp_path: Path, uploads: list[Tree], kind: type[Deployment]
) -> None:
    """And a connection that is dead in silence is noticed: the node makes another."""
    (tmp_path / "private").mkdir(mode=0o700)
    deployment, folder = kind(tmp_path / "private", tmp_path / "logs"), RunFolder(tmp_path / "run")
    chosen = settings(folder)
    (host,) = hosts_of(chosen, folder)
    try:
        deployment.start_link()
        sniffer = Sniffer(deployment.fleet)
        deployment.fleet = sniffer.address
        deployment.admit([host])
        run = deployment.start_run(chosen)
        pass_on_rounds(deployment, run, folder, lambda event: None)
        sent, kept = sniffer.sent(), [read_state(one).tensors for one in states(host)]
        if kind is Deployment:
            sniffer.forget()
            again = RunFolder(tmp_path / "again")
            before, run = len(sniffer.streams), deployment.start_run(settings(again))
            pass_on_rounds(deployment, run, again, lambda event: None)
            assert Run(again.path).sha == Run(folder.path).sha
            assert len(sniffer.streams) > before
    finally:
        deployment.stop()
    sniffer.socket.close()
    assert len(kept) == 2
    whole = [value.numpy().tobytes() for tree in uploads for value in tree.values()]
    assert len(uploads) == 2
    assert all((one in sent) == (kind is Plain) for one in whole)
    personal = pieces(kept, 16) - pieces(uploads, 16)
    assert len(personal) > 100
    assert not any(piece in sent for piece in personal)


def settings(folder: RunFolder) -> Settings:
    """Of a run on the one client, in a folder."""
    return parse(kebab(KEYS | {"out": str(folder.path), "min_clients": 1}))


def states(host: Host) -> list[Path]:
    return sorted((host.folder / "runs").rglob("*.safetensors"))
