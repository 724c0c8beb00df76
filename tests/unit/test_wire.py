"""Tensors that travel: what goes in comes out, also when nodes are threads."""

import io
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from bouquet.flower.wire import named, pack, unpack

ways = pytest.mark.parametrize("way", [pack, named])


@ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_a_tensor_survives_the_wire(
    way: Callable[..., ArrayRecord], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    sent = torch.arange(int(np.prod(shape))).to(dtype).reshape(shape)

    received = unpack(way({"a": sent, "b": sent[..., None]}))

    torch.testing.assert_close(received, {"a": sent, "b": sent[..., None]}, rtol=0, atol=0)


def test_all_tensors_are_one_array_and_keep_their_order() -> None:
    """Every array is requests of its own; and sums depend on the order."""
    record = pack({"b": torch.ones(2), "a": torch.ones(3)})
    assert len(record) == 1
    assert list(unpack(record)) == ["b", "a"]
    assert len(pack({})) == 0
    assert unpack(pack({})) == {}


def test_no_two_threads_parse_headers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # NumPy parses each header, and Python 3.11 fails at random when two threads parse.
    records = [named({"a": torch.zeros(size), "b": torch.zeros(size, 2)}) for size in range(7, 11)]
    inside, most, parse = threading.Semaphore(0), [], Array.numpy

    def slow_parse(array: Array) -> object:
        inside.release()
        most.append(inside._value)
        time.sleep(0.01)
        inside.acquire()
        return parse(array)

    monkeypatch.setattr(Array, "numpy", slow_parse)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(unpack, records))

    assert most == [1] * 8


@pytest.mark.parametrize(
    ("damage", "refusal"),
    [
        (lambda data: data[:-1], "too small"),  # half a number is missing
        (lambda data: data[:-4], "too small"),  # a whole one is
        (lambda data: data + b"1234", "4 bytes too many"),  # one too many
        (lambda data: data[:8] + b"X" + data[9:], "Expecting value"),
        (lambda data: data[:5], "Expecting value"),
        (lambda data: b"", "Expecting value"),
        (lambda data: data.replace(b"float32", b"object "), "cannot be 'a' of 'object '"),
        (lambda data: data.replace(b"[3]", b"-3 "), "negative"),
        (lambda data: headed([["a", "float32", [1]], ["a", "float32", [2]]]) + bytes(12), "be 'a'"),
        (lambda data: headed([[7, "float32", [1]]]) + bytes(4), "cannot be 7"),
    ],
)
def test_damaged_tensors_are_refused(damage: Callable[[bytes], bytes], refusal: str) -> None:
    (array,) = pack({"a": torch.arange(3, dtype=torch.float32)}).values()
    array.data = damage(array.data)
    with pytest.raises((ValueError, TypeError), match=refusal):
        unpack(ArrayRecord({"tensors": array}))


def headed(names: object) -> bytes:
    """The beginning of packed tensors."""
    words = json.dumps(names).encode()
    return len(words).to_bytes(8, "little") + words


@ways
def test_what_is_received_can_be_written_to(way: Callable[..., ArrayRecord]) -> None:
    """Aggregation adds in place, and Flower's bytes are another's."""
    record = way({"a": torch.zeros(2)})
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
