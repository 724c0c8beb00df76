"""Tensors that travel: what goes in comes out, also when nodes are threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from bouquet.flower.wire import pack, unpack


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_a_tensor_survives_the_wire(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)

    received = unpack(pack({"a": sent}))["a"]

    torch.testing.assert_close(received, sent, rtol=0, atol=0)


def test_no_two_threads_read_arrays_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # NumPy parses each array's header, and Python 3.11 fails at random when two threads parse.
    record = pack({"a": torch.zeros(1), "b": torch.zeros(1)})
    inside, most, load = threading.Semaphore(0), [], np.load

    def slow_load(*args: Any, **keys: Any) -> object:
        inside.release()
        most.append(inside._value)
        time.sleep(0.01)
        inside.acquire()
        return load(*args, **keys)

    monkeypatch.setattr(np, "load", slow_load)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: unpack(record), range(4)))

    assert most == [1] * 8
