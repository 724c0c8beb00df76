"""Tensors that travel: what goes in comes out, also when nodes are threads."""

import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from bouquet.flower.wire import _described, pack, unpack


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_a_tensor_survives_the_wire(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)

    received = unpack(pack({"a": sent}))["a"]

    torch.testing.assert_close(received, sent, rtol=0, atol=0)


def test_no_two_threads_parse_headers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # NumPy parses each header, and Python 3.11 fails at random when two threads parse.
    records = [pack({"a": torch.zeros(size), "b": torch.zeros(size, 2)}) for size in range(7, 11)]
    inside, most, parse = threading.Semaphore(0), [], np.lib.format.read_array_header_1_0

    def slow_parse(*args: Any, **keys: Any) -> object:
        inside.release()
        most.append(inside._value)
        time.sleep(0.01)
        inside.acquire()
        return parse(*args, **keys)

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", slow_parse)
    _described.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(unpack, records))

    assert most == [1] * 8


@pytest.mark.parametrize(
    ("damage", "refusal"),
    [
        (lambda data: data[:-1], "buffer size|elements|reshape"),  # half a number is missing
        (lambda data: data[:-4], "reshape"),  # a whole one is
        (lambda data: data + b"1234", "reshape"),  # one too many
        (lambda data: b"X" + data[1:], "pickle|magic|interpret"),
    ],
)
def test_a_damaged_array_is_refused(damage: Callable[[bytes], bytes], refusal: str) -> None:
    record = pack({"a": torch.arange(3, dtype=torch.float32)})
    unpack(record)  # its header is known from now on
    record["a"].data = damage(record["a"].data)
    with pytest.raises(ValueError, match=refusal):
        unpack(record)


def test_what_is_received_can_be_written_to() -> None:
    """Aggregation adds in place, and Flower's bytes are another's."""
    record = pack({"a": torch.zeros(2)})
    unpack(record)["a"].add_(1)
    assert unpack(record)["a"].tolist() == [0, 0]


def test_arrays_by_columns_and_of_objects_are_left_to_numpy() -> None:
    columns = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert unpack(ArrayRecord({"a": Array(columns)}))["a"].tolist() == columns.tolist()
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    planted = Array("object", (1,), "numpy.ndarray", buffer.getvalue())
    with pytest.raises(ValueError, match="allow_pickle=False"):
        unpack(ArrayRecord({"a": planted}))
