"""Low-rank adapters (Hu et al. 2021): W x + (α/r) B A x, where W stays what it was.

As other adapters they hang on the layers they change, so the names of a model's own weights stay.
"""

import math
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bouquet.core.errors import BadInput


class LowRank(nn.Module):
    """What is added to a layer: A at random, B zero, so that it starts as nothing."""

    def __init__(self, reads: int, gives: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.scale = alpha / rank
        self.a = nn.Parameter(torch.empty(rank, reads))
        self.b = nn.Parameter(torch.zeros(gives, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Zero until B is trained."""
        return linear(linear(x, self.a), self.b) * self.scale


def linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """The layers that low-rank adapters can be added to, by name.

    Those inside of torch's own attention are none: it multiplies by their weights and calls none
    of them.
    """
    packed = {
        id(part)
        for one in module.modules()
        if isinstance(one, nn.MultiheadAttention)
        for part in one.modules()
    }
    return {
        name: layer
        for name, layer in module.named_modules()
        if _sizes(layer) and id(layer) not in packed
    }


def add_lora(module: nn.Module, rank: int, alpha: float, target: str) -> None:
    """Add an adapter, called ``lora`` within it, to every linear layer that patterns name.

    Parameters
    ----------
    module : nn.Module
        Changed in place.
    rank : int
        How many rows A has and columns B.
    alpha : float
        What is added is scaled by α over the rank.
    target : str
        Patterns over the names of layers, separated by spaces; empty for all linear ones.
    """
    layers = linear_layers(module)
    patterns = target.split() or ["*"]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in layers):
            raise _refusal(module, pattern, list(layers))
    for name, layer in layers.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            reads, gives = _sizes(layer)
            layer.lora = LowRank(reads, gives, rank, alpha)
            layer.register_forward_hook(_changed)


def _changed(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
    added: Tensor = layer.lora(given[0])  # type: ignore[operator]
    return output + added


def _sizes(layer: nn.Module) -> tuple[int, ...]:
    """How many numbers a linear layer reads and gives; nothing for other layers."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if type(layer).__name__ == "Conv1D" and isinstance(layer.weight, Tensor):
        return tuple(layer.weight.shape)  # Hugging Face's: a linear layer, its weights transposed
    return ()


def _refusal(module: nn.Module, pattern: str, layers: list[str]) -> BadInput:
    named = [one for name, one in module.named_modules() if fnmatchcase(name, pattern)]
    inner = [type(one).__name__ for one in named]
    why = f" ({inner[0]} is none)" if inner else ""
    if any(isinstance(one, nn.MultiheadAttention) for one in module.modules()) and inner:
        why = " (nn.MultiheadAttention calls none of its layers, so nothing can be added to them)"
    listed = ", ".join(layers[:6]) + ", ..." * (len(layers) > 6)
    return BadInput(
        f"personal.lora-target must match linear layers, such as {listed or 'none here'}, "
        f"not {pattern!r}{why}."
    )
