"""A SuperLink's owner at work: which keys are let in, and for which clients.

Flower gives every key one node id for good, and keeps a name for it that only the SuperLink's
owner can set: ours is the list of the client ids the key is for. The server app is told that name
with the node, and leaves out a node that says it hosts somebody else.
"""

import base64
import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from bouquet.bound import clients_of, name_for
from bouquet.core.errors import BadInput, RunFailed
from bouquet.deploy.guard import ShowToken, control_token
from bouquet.flower.private import (
    HEARTBEAT_PATIENCE,
    ControlHttpClient,
    ListNodesRequest,
    NodeInfo,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    UnregisterNodeRequest,
    public_key_to_bytes,
)

REVOKED = "unregistered"


@dataclass(frozen=True)
class Registered:
    """A key that a SuperLink knows.

    Parameters
    ----------
    node : int
        Flower's id of whoever has it.
    clients : tuple of str
        The clients it is for; empty for a key that is bound to none.
    fingerprint : str
        Of the key, as ``ssh-keygen -lf`` shows it.
    status : str
        Flower's: registered, online, offline or unregistered.
    seen : datetime or None
        The last sign of life.
    """

    node: int
    clients: tuple[str, ...]
    fingerprint: str
    status: str
    seen: datetime | None


@contextmanager
def control(address: str, folder: Path) -> Iterator[ControlHttpClient]:
    """The way to a SuperLink for its owner, who can read its folder."""
    client = ControlHttpClient.from_server_address(
        address,
        insecure=False,
        root_certificates=(folder / "ca.pem").read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
            ShowToken(control_token(folder)),
        ],
    )
    try:
        yield client
    except (BadInput, RunFailed):
        raise
    except Exception as error:  # a refusal, or no answer at all
        raise RunFailed(f"The SuperLink does not do as asked: {error}") from error
    finally:
        client.close()


@contextmanager
def control_of(folder: Path) -> Iterator[ControlHttpClient]:
    """The way to the SuperLink of a folder, which must be running."""
    file = folder / "flower" / "config.toml"
    if not file.exists():
        raise BadInput(f"--folder: {folder} holds no SuperLink; bouquet superlink makes one.")
    address = tomllib.loads(file.read_text("utf-8"))["superlink"]["bouquet"]["address"]
    with control(address, folder) as client:
        yield client


def nodes(client: ControlHttpClient) -> list[Registered]:
    """All keys there ever were, in the order they came."""
    found = sorted(
        client.ListNodes(ListNodesRequest()).nodes_info, key=lambda one: one.registered_at
    )
    return [_registered(one) for one in found]


def register(client: ControlHttpClient, key: Path, clients: Sequence[str]) -> int:
    """Let a key in, for some clients that are nobody else's; returns Flower's id for it."""
    known, public = nodes(client), read_key(key)
    mark = fingerprint(public)
    for one in known:
        if one.fingerprint == mark:
            raise BadInput(f"{key} was {_past(one)} already; make another with bouquet node key.")
        taken = sorted({*clients} & {*one.clients})
        if taken and one.status != REVOKED:
            raise BadInput(
                f"--clients: {', '.join(taken)} belongs to the key {one.fingerprint}; revoke that, "
                "or put another in its place with bouquet superlink rotate."
            )
    return _admit(client, public, clients)


def rotate(client: ControlHttpClient, old: Path, new: Path) -> int:
    """Put a new key in the place of another, for the same clients; returns the new node's id."""
    before, public = _found(client, old), read_key(new)
    if any(one.fingerprint == fingerprint(public) for one in nodes(client)):
        raise BadInput(f"{new} is known already; make another with bouquet node key.")
    node = _admit(client, public, before.clients)
    client.UnregisterNode(UnregisterNodeRequest(node_id=before.node))
    return node


def revoke(client: ControlHttpClient, key: Path) -> Registered:
    """Let a key in no more, ever; its clients are free for another."""
    found = _found(client, key)
    client.UnregisterNode(UnregisterNodeRequest(node_id=found.node))
    return found


def read_key(path: Path) -> Any:
    """A public key, as ``bouquet node key`` writes it."""
    try:
        return load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{path} holds no public key, such as north.key.pub.") from error


def fingerprint(public_key: Any) -> str:
    """A key in a few letters, as ``ssh-keygen -lf`` has it."""
    line: bytes = public_key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _admit(client: ControlHttpClient, public: Any, clients: Sequence[str]) -> int:
    request = RegisterNodeRequest(public_key=public_key_to_bytes(public), name=name_for(clients))
    return int(client.RegisterNode(request).node_id)


def _found(client: ControlHttpClient, key: Path) -> Registered:
    mark = fingerprint(read_key(key))
    for one in nodes(client):
        if one.fingerprint == mark and one.status != REVOKED:
            return one
    raise BadInput(f"{key} is not registered.")


def _registered(info: NodeInfo) -> Registered:
    until = info.online_until
    seen = (
        until - HEARTBEAT_PATIENCE * info.heartbeat_interval if info.status == "online" else until
    )
    return Registered(
        info.node_id,
        clients_of(info.name),
        fingerprint(load_pem_public_key(info.public_key)),
        info.status,
        datetime.fromtimestamp(seen, UTC) if until else None,
    )


def _past(one: Registered) -> str:
    return "revoked" if one.status == REVOKED else "registered"
