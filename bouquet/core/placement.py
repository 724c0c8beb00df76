"""On which device tensors are: chosen by name, moved there once, and brought back.

A node's data, what it received and its clients' states go to its device; uploads, states and
numbers come back. Messages, files and the server know the CPU alone, and no scheme knows of any
device: what it makes, it makes like the tensors it was given.
"""

import threading
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from bouquet.core.errors import BadInput

V = TypeVar("V", bound=Tensor | dict[str, Any] | tuple[Any, ...])

CPU = torch.device("cpu")
DEVICES = r"auto|cpu|mps|cuda(:\d+)?"

_copies: Any = WeakTensorKeyDictionary()
_copying = threading.Lock()


def there_are() -> list[str]:
    """The devices of this machine."""
    # Counted without starting CUDA, which a process could no longer be forked after.
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def find(asked: str, place: int = 0) -> torch.device:
    """The device that a node works on.

    Parameters
    ----------
    asked : str
        ``cpu``, ``cuda``, ``cuda:1`` or ``mps``; ``auto`` for a GPU of CUDA's where there is one,
        else the CPU.
    place : int
        The node's number among its machine's: where no GPU is named, nodes share out all of them.
    """
    known = there_are()
    gpus = [name for name in known if name.startswith("cuda")]
    if asked == "auto" and not gpus:
        return CPU
    name = gpus[place % len(gpus)] if asked in ("auto", "cuda") and gpus else asked
    if name not in known:
        raise BadInput(
            f"device must be one that this machine has, {' or '.join(known)}, or auto, "
            f"not {asked!r}."
        )
    found = torch.device(name)
    return found if found.type == "cpu" else torch.device(found.type, found.index or 0)


def gpus(asked: str) -> int:
    """How many GPUs a run may use that is asked for a device; 0 on the CPU."""
    device = find(asked)
    if device.type == "cpu":
        return 0
    return sum(name.startswith(asked if ":" in asked else device.type) for name in there_are())


def moved(value: V, device: torch.device) -> V:
    """A tensor, tree or record on a device; what is there already is not copied."""
    if isinstance(value, Tensor):
        return value.to(device)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}  # type: ignore[return-value]
    return type(value)(*(moved(part, device) for part in value))


def kept(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor's copy on a device, made once for all who ask while the tensor lives."""
    if tensor.device == device:
        return tensor
    with _copying:  # nodes of an inline simulation are threads
        copies = _copies.setdefault(tensor, {})
        if device not in copies:
            copies[device] = tensor.to(device)
        found: Tensor = copies[device]
        return found


def widest(device: torch.device) -> torch.dtype:
    """The type for sums that must not lose or overflow: double, where a device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
