"""A device's record of what it sent: every field of every reply.

Of tensors it has names, shapes, bytes and hashes; numbers and words, which are few, as they are.
"""

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
from bouquet.core.scheme import AnyScheme
from bouquet.core.trees import Tree, digest
from bouquet.core.untrusted import listed, text, whole
from bouquet.flower import wire
from bouquet.storage.files import BadFile, file_name
from bouquet.storage.privacy import private_folder

# Where refusals are on record: a message that cannot be followed may not even say its run.
REFUSED = "refused"
# What the record says of code that did not belong to the device.
SENT = "sent with the run"


def record_reply(
    device: Device, run: str, scheme: AnyScheme, kind: str, round_: int, reply: Message
) -> None:
    """Add a line about a reply to the run's record, before the reply leaves.

    Parameters
    ----------
    device : Device
        Whose reply it is.
    run : str
        The run's name, as the server gives it.
    scheme : Scheme
        What it is a round of.
    kind : str
        The message's kind: query, train or evaluate.
    round_ : int
        The round; 0 for a query.
    reply : Message
        What is about to be sent.
    """
    content = reply.content
    arrays = wire.unpack(content.array_records[wire.ARRAYS])
    words = dict(content.config_records[wire.NOTE])
    line = {
        "kind": kind,
        "round": round_,
        "scheme": scheme.name,
        # What the server can make of it is the method's doing, and the device's owner should know.
        "derivable": scheme.exception or scheme.derivable,
        "clients": words.get("clients", []),
        "bytes": wire.size(content),
        "arrays": [_about(name, value) for name, value in arrays.items()],
        "metrics": dict(content.metric_records[wire.METRICS]),
        "words": words,
        "personal": _personal_in(arrays, _stored(device, run)),
    }
    _write(device, run.partition("/")[0], line)


def record_refusal(device: Device, kind: str, sentence: str) -> None:
    """Add a line about a message that was not followed: the reason leaves, and nothing else."""
    line = {
        "kind": kind,
        "round": 0,
        "clients": [],
        "bytes": len(sentence.encode()),
        "arrays": [],
        "metrics": {},
        "words": {"refused": sentence},
        "personal": [],
    }
    _write(device, REFUSED, line)


def _write(device: Device, name: str, line: dict[str, Any]) -> None:
    told = {
        "version": 2,
        "time": time.time(),
        "code": _whose_code(),
        **line,
        # A process lives for one message, so these are the message's own.
        "cpu_seconds": time.process_time(),
        "peak_memory": _peak_memory(),
    }
    with open(
        private_folder(device.sent) / f"{file_name(name)}.jsonl", "a", opener=_private
    ) as file:
        os.fchmod(file.fileno(), 0o600)  # it may be of before
        file.write(json.dumps(told) + "\n")


def _whose_code() -> str:
    """Whether this very code is what is installed here, or came with the run, as Flower's may."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    return SENT if Path(__file__).resolve().is_relative_to(home.resolve()) else "installed"


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


def other_fields(line: dict[str, Any]) -> dict[str, Any]:
    """What a reply had beside tensors: its numbers and words, by name.

    The first version of the record had the names alone.
    """
    found: dict[str, Any] = {}
    for part in ("metrics", "words"):
        held = line.get(part, {})
        found |= held if isinstance(held, dict) else dict.fromkeys(held, "")
    return found


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
