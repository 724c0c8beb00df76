"""What a module keeps beside its parameters, told apart by what a training step does to it."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from bouquet.core.chance import Seeded
from bouquet.core.errors import BadInput
from bouquet.core.trees import MARK, Tree, plain
from bouquet.models.config import Shape


class Buffers(NamedTuple):
    """A module's buffers: statistics, which training changes, and constants."""

    statistics: Tree
    constants: Tree


def buffers_of(module: nn.Module, input_shape: Shape, dtype: torch.dtype) -> Buffers:
    """A module's buffers; statistics are numbers of the weights' type, under marked names.

    A buffer that PyTorch does not save is none that a run could: each step finds it as it was.
    """
    every = {name: value.detach() for name, value in module.named_buffers()}
    saved = module.state_dict().keys()
    moving = _moving(module, {n: v for n, v in every.items() if n in saved}, input_shape)
    return Buffers(
        {f"{name}{MARK}": every[name].to(dtype) for name in every if name in moving},
        {name: value for name, value in every.items() if name not in moving},
    )


def rest(module: nn.Module, statistics: Tree) -> None:
    """Let the layers that keep statistics use them in training too, and leave them as they are."""
    for name in statistics:
        module.get_submodule(plain(name).rpartition(".")[0]).eval()


def batch_norms(module: nn.Module) -> list[str]:
    """The names of the batch-norm layers."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]


def _moving(module: nn.Module, every: Tree, input_shape: Shape) -> set[str]:
    """The names of the buffers that a training step changes, found out by taking one.

    The server has no examples, so these are made up; numbers first, then tokens. What does not
    work with either is refused where the examples are.
    """
    if not every:
        return set()
    numbers = torch.rand((2, *input_shape), generator=torch.Generator().manual_seed(0))
    some = next(module.parameters())
    tokens = torch.zeros((2, *input_shape), dtype=torch.int64)
    for x in (numbers.to(some.dtype), tokens):
        given = {name: value.clone() for name, value in every.items()}
        try:
            with torch.no_grad(), Seeded(0):
                functional_call(module.train(), given, (x,))
        except Exception:  # whatever a user's model raises
            continue
        moved = changed(every, given)
        _refuse_unlike(every, given, moved)
        return moved
    layers = [name for name, layer in module.named_modules() if isinstance(layer, _NormBase)]
    return {name for name in every if name.rpartition(".")[0] in layers}


def changed(before: Tree, after: Tree) -> set[str]:
    """The names of the tensors that are not what they were."""
    return {name for name, value in before.items() if not _same(value, after[name])}


def _refuse_unlike(before: Tree, after: Tree, moved: set[str]) -> None:
    for name in sorted(moved):
        if before[name].shape != after[name].shape or before[name].is_complex():
            raise BadInput(
                f"The model's buffer {name!r}, which training changes, must be real numbers of one "
                f"shape, not {tuple(after[name].shape)} after {tuple(before[name].shape)}."
            )


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
