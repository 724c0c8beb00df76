"""Recorded steps handed to PyTorch's compiler, which needs a C++ compiler and pays in long runs."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

_log = logging.getLogger("flwr")
_said: set[str] = set()


def compiled(module: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A step compiled, and tried on examples, which it may write to; or, if it fails, as it was.

    What is compiled is kept on disk by PyTorch (``TORCHINDUCTOR_CACHE_DIR``).
    """
    forward = torch.compile(module, dynamic=False)
    try:
        with torch.no_grad():
            forward(*examples)
    except Exception as error:  # no compiler, or an operation that it does not know
        reason = str(error).strip().partition("\n")[0][:200]
        if reason not in _said:
            _said.add(reason)
            _log.warning("Steps are replayed, not compiled: %s", reason)
        return module.forward
    return forward
