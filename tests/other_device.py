"""A device that any machine has: it computes on the CPU, and refuses to be mixed with it.

PyTorch lets Python stand for a backend of its own (``privateuse1``). Here a tensor of that device
holds one of the CPU's. An operation on tensors of both devices is an error, as it is on a GPU;
tensors without axes and the positions in an indexing may be the CPU's, as they may be on a GPU.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
NAME = "other:0"
_MOVES = {aten._to_copy.default, aten.copy_.default}
_INDEXES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


class Elsewhere(Tensor):
    """A tensor of the other device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Elsewhere":
        """Look like the tensor that is held."""
        made: Elsewhere = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME),
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.held!r})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute on what is held."""
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    here = [one for one in tensors if not isinstance(one, Elsewhere)]
    mixed = len(here) < len(tensors) and any(one.ndim for one in here)
    if mixed and func not in _MOVES and (func not in _INDEXES or here[0] is tensors[0]):
        raise RuntimeError(f"{func} mixes tensors of {NAME} and the CPU")
    device = kwargs.get("device")
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
        elsewhere = torch.device(device).type != "cpu"
    else:  # an operation that writes to a tensor gives that one
        elsewhere = isinstance(args[0] if func in _MOVES else next(iter(tensors[:1]), None), Elsewhere) or (
            len(here) < len(tensors)
        )
    if func is aten.copy_.default:
        target, source = (one.held if isinstance(one, Elsewhere) else one for one in args[:2])
        target.copy_(source)
        return args[0]
    args, kwargs = tree_map(
        lambda one: one.held if isinstance(one, Elsewhere) else one, (args, kwargs)
    )
    found = func(*args, **kwargs)
    if not elsewhere:
        return found
    return tree_map(lambda one: Elsewhere(one) if isinstance(one, Tensor) else one, found)


@functools.cache
def set_up() -> torch.library.Library:
    """Make the device known to PyTorch, for the rest of the process."""
    _setup_privateuseone_for_python_backend("other")
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _computed(func, args, kwargs), "PrivateUse1")
    return library
