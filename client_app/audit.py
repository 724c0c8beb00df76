"""A device's record of what it sent: names, shapes, bytes and hashes, never the numbers."""

import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Message
from torch import Tensor

from bouquet.client_app.device import Device
from bouquet.client_app.stores import read_state
from bouquet.core.privacy import private_folder
from bouquet.core.trees import Tree, digest
from bouquet.core.untrusted import listed, text, whole
from bouquet.flower import wire
from bouquet.storage.files import BadFile, file_name


def record_reply(device: Device, run: str, kind: str, round_: int, reply: Message) -> None:
    """Add a line about a reply to the run's record, before the reply leaves.

    Parameters
    ----------
    device : Device
        Whose reply it is.
    run : str
        The run's name, as the server gives it.
    kind : str
        The message's kind: query, train or evaluate.
    round_ : int
        The round; 0 for a query.
    reply : Message
        What is about to be sent.
    """
    content = reply.content
    arrays = wire.unpack(content.array_records[wire.ARRAYS])
    line = {
        "version": 1,
        "time": time.time(),
        "kind": kind,
        "round": round_,
        "clients": content.config_records[wire.NOTE].get("clients", []),
        "bytes": wire.size(content),
        "arrays": [_about(name, value) for name, value in arrays.items()],
        "metrics": sorted(content.metric_records[wire.METRICS]),
        "words": sorted(content.config_records[wire.NOTE]),
        "personal": _personal_in(arrays, _stored(device, run)),
        # A process lives for one message, so these are the message's own.
        "cpu_seconds": time.process_time(),
        "peak_memory": _peak_memory(),
    }
    path = private_folder(device.sent) / f"{file_name(run.partition('/')[0])}.jsonl"
    with open(path, "a", opener=_private) as file:
        os.fchmod(file.fileno(), 0o600)  # it may be of before
        file.write(json.dumps(line) + "\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs' names and lines of a device's record, in order.

    A damaged line is refused: nobody could say what it told of.
    """
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                fields = json.loads(line.decode())
                whole(fields["bytes"], "bytes")
                listed(fields["personal"], "personal", text)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise BadFile(f"{path} is damaged (line {number}).") from error
            yield path.stem, fields


def _about(name: str, value: Tensor) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "bytes": value.nbytes,
        "sha256": _hash(value),
    }


def _stored(device: Device, run: str) -> Iterator[Tensor]:
    """All that the device keeps of a run; both generations."""
    for path in sorted(device.states(run).glob("*.safetensors")):
        with suppress(BadFile):  # training has refused it, and said so
            yield from read_state(path).tensors.values()


def _personal_in(arrays: Tree, kept: Iterable[Tensor]) -> list[str]:
    """Names of what is sent that is, whole or as a row, something the device keeps."""
    hashes = {_hash(value) for value in kept}
    return [
        name
        for name, value in arrays.items()
        if {_hash(value), *[_hash(row) for row in value if value.ndim > 1]} & hashes
    ]


def _hash(value: Tensor) -> str:
    return digest([value.contiguous().numpy().tobytes()])


def _peak_memory() -> int:
    """Bytes this process held at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
