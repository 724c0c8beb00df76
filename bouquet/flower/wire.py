"""What messages carry: one ArrayRecord of tensors, one MetricRecord of numbers.

A ConfigRecord beside them names things (round, clients, reasons): Flower's
MetricRecord has no text. A message to a node also has the run's settings, so that a
node needs to be told nothing in advance and the server is the one place that knows.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from bouquet.core.syntax_lock import syntax_lock
from bouquet.core.trees import Tree

ARRAYS, METRICS, NOTE, SETTINGS, WARM = "arrays", "metrics", "note", "settings", "warm"
# The one array that has all tensors of a message, and how it says so.
_ALL, _TOGETHER = "tensors", "bouquet.tensors"
_LENGTH = 8
# What a tensor may be made of; never objects.
_KINDS = {
    str(kind): kind
    for kind in map(np.dtype, ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?", "c8", "c16"))
}


def named(tree: Tree) -> ArrayRecord:
    """Tensors as anybody's Flower app has them: an array each."""
    return ArrayRecord(
        {name: Array(value.detach().contiguous().numpy()) for name, value in tree.items()}
    )


def pack(tree: Tree) -> ArrayRecord:
    """Tensors for a message, as one array.

    Flower sends, stores and fetches every array by requests of its own: two a node, and a dozen
    statements in a SuperLink's database each. What is in it comes first: names, types and shapes,
    as JSON, which a length precedes. Of no tensors there is no array.
    """
    if not tree:
        return ArrayRecord()
    values = {name: value.detach().contiguous().numpy() for name, value in tree.items()}
    head = json.dumps([(name, str(one.dtype), one.shape) for name, one in values.items()]).encode()
    data = b"".join(
        [len(head).to_bytes(_LENGTH, "little"), head, *[one.tobytes() for one in values.values()]]
    )
    return ArrayRecord({_ALL: Array("uint8", (len(data),), _TOGETHER, data)})


def unpack(record: ArrayRecord) -> Tree:
    """Tensors of a message, packed or named; nothing is unpickled."""
    if [array.stype for array in record.values()] == [_TOGETHER]:
        (array,) = record.values()
        return dict(_together(array.data))
    return {name: torch.from_numpy(_values(array)) for name, array in record.items()}


def _together(data: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """What :func:`pack` wrote, or an error."""
    start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    seen = set()
    for name, kind, shape in json.loads(data[_LENGTH:start]):
        if not isinstance(name, str) or name in seen or kind not in _KINDS:
            raise ValueError(f"a packed tensor cannot be {name!r} of {kind!r}")
        seen.add(name)
        # Where too few bytes are left for the shape, it is refused here, with a TypeError.
        value = np.ndarray(shape, _KINDS[kind], data, start)
        start += value.nbytes
        yield name, torch.from_numpy(value.copy())
    if start != len(data):
        raise ValueError(f"packed tensors have {len(data) - start} bytes too many")


def _values(array: Array) -> NDArray[Any]:
    """What an array holds; NumPy parses source code for it, which no two threads may at once."""
    with syntax_lock:
        return array.numpy()


def content(tree: Tree, metrics: MetricRecord, note: ConfigRecord) -> RecordDict:
    """A message's records."""
    return RecordDict({ARRAYS: pack(tree), METRICS: metrics, NOTE: note})


def declared(records: RecordDict) -> int:
    """Bytes of a message's content by the lengths it has, without making anything of it."""
    arrays = [array for record in records.array_records.values() for array in record.items()]
    others: list[Any] = [*records.metric_records.values(), *records.config_records.values()]
    words: list[tuple[str, Any]] = [word for record in others for word in record.items()]
    return sum(len(name) + len(array.data) for name, array in arrays) + sum(
        len(name) + (sum(map(_length, value)) if isinstance(value, list) else _length(value))
        for name, value in words
    )


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 8


def size(records: RecordDict) -> int:
    """Bytes of a message's content."""
    arrays = sum(record.count_bytes() for record in records.array_records.values())
    # The others are small, and Flower's count of a ConfigRecord fails on empty values.
    others = (*records.metric_records.values(), *records.config_records.values())
    return arrays + sum(len(record.deflate()) for record in others)
