"""A device that any machine has: it computes on the CPU, and refuses to be mixed with it.

PyTorch lets Python stand for a backend of its own (``privateuse1``). A tensor of that device holds
one of the CPU's. An operation on tensors of both devices is an error, as it is on a GPU, and, as it
is there, tensors without axes and the positions in an indexing may be the CPU's.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
_MOVES = {aten._to_copy.default, aten.copy_.default}


class Elsewhere(Tensor):
    """A tensor of the other device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Elsewhere":
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=OTHER,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # which says that it is disabled
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _computed(func, *args, **(kwargs or {}))


def _computed(func: Any, *args: Any, **kwargs: Any) -> Any:
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    theirs = [one for one in tensors if isinstance(one, Elsewhere)]
    _refuse_mixture(func, tensors, theirs)
    device = kwargs.get("device")
    there = bool(theirs) if device is None else torch.device(device).type == "other"
    if device is not None:
        kwargs["device"] = torch.device("cpu")
    here, words = tree_map_only(Elsewhere, lambda one: one.held, (args, kwargs))
    found = func(*here, **words)
    if func._schema.is_mutable:  # what was written to, not a second tensor that holds the same
        return args[0]
    return tree_map_only(Tensor, Elsewhere, found) if there else found


def _refuse_mixture(func: Any, tensors: list[Tensor], theirs: list["Elsewhere"]) -> None:
    apart = [one for one in tensors if one.ndim and not isinstance(one, Elsewhere)]
    indexes = func is aten.index.Tensor and isinstance(tensors[0], Elsewhere)
    if theirs and apart and func not in _MOVES and not indexes:
        raise RuntimeError(f"{func} mixes devices")


# At once, for autograd counts the devices when it is first used.
_setup_privateuseone_for_python_backend("other")
_library = torch.library.Library("_", "IMPL")
_library.fallback(_computed, "PrivateUse1")
OTHER = torch.device("other:0")
