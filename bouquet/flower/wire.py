"""What messages carry: one ArrayRecord of tensors, one MetricRecord of numbers.

A ConfigRecord beside them names things (round, clients, reasons): Flower's
MetricRecord has no text. A message to a node also has the run's settings, so that a
node needs to be told nothing in advance and the server is the one place that knows.
"""

import functools
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from bouquet.core.syntax_lock import syntax_lock
from bouquet.core.trees import Tree

ARRAYS, METRICS, NOTE, SETTINGS, WARM = "arrays", "metrics", "note", "settings", "warm"
# How NumPy's format 1.0 begins; two bytes that say how long the header is follow.
_MAGIC = np.lib.format.magic(1, 0)
_HEAD = len(_MAGIC) + 2


def pack(tree: Tree) -> ArrayRecord:
    """Tensors for a message."""
    return ArrayRecord(
        {name: Array(value.detach().contiguous().numpy()) for name, value in tree.items()}
    )


def unpack(record: ArrayRecord) -> Tree:
    """Tensors of a message; nothing is unpickled."""
    return {name: torch.from_numpy(_values(array)) for name, array in record.items()}


def _values(array: Array) -> NDArray[Any]:
    """What an array holds, as ``array.numpy()`` has it, which parses source code for each."""
    start = _HEAD + int.from_bytes(array.data[_HEAD - 2 : _HEAD], "little")
    known = _described(array.data[:start]) if array.stype == "numpy.ndarray" else None
    if known is None:
        with syntax_lock:
            return array.numpy()
    dtype, shape = known
    # Of another length than the shape says, it is refused here.
    return np.frombuffer(array.data, dtype, offset=start).reshape(shape).copy()


@functools.lru_cache(maxsize=1024)
def _described(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Type and shape by the header of NumPy's format 1.0; None for what it has to read itself."""
    if not header.startswith(_MAGIC):
        return None
    with syntax_lock:
        try:
            shape, by_columns, dtype = np.lib.format.read_array_header_1_0(
                BytesIO(header[_HEAD - 2 :])
            )
        except ValueError:
            return None
    return None if by_columns or dtype.hasobject else (dtype, shape)


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
