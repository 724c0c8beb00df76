"""What messages carry: one ArrayRecord of tensors, one MetricRecord of numbers.

A ConfigRecord beside them names things (round, clients, reasons): Flower's
MetricRecord has no text. A message to a node also has the run's settings, so that a
node needs to be told nothing in advance and the server is the one place that knows.
"""

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from bouquet.core.syntax_lock import syntax_lock
from bouquet.core.trees import Tree

ARRAYS, METRICS, NOTE, SETTINGS, WARM = "arrays", "metrics", "note", "settings", "warm"


def pack(tree: Tree) -> ArrayRecord:
    """Tensors for a message."""
    return ArrayRecord(
        {name: Array(value.detach().contiguous().numpy()) for name, value in tree.items()}
    )


def unpack(record: ArrayRecord) -> Tree:
    """Tensors of a message; nothing is unpickled."""
    with syntax_lock:  # the header of each array
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def content(tree: Tree, metrics: MetricRecord, note: ConfigRecord) -> RecordDict:
    """A message's records."""
    return RecordDict({ARRAYS: pack(tree), METRICS: metrics, NOTE: note})


def size(records: RecordDict) -> int:
    """Bytes of a message's content."""
    arrays = sum(record.count_bytes() for record in records.array_records.values())
    # The others are small, and Flower's count of a ConfigRecord fails on empty values.
    others = (*records.metric_records.values(), *records.config_records.values())
    return arrays + sum(len(record.deflate()) for record in others)
