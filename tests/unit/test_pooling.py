"""Pooling before cutting off at 0 gives the same bits, there and back."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from bouquet.core.pooling import pool_before_relu

CHANNELS_LAST = torch.channels_last
Net = Callable[[Tensor, Tensor], Tensor]


def pooled(x: Tensor, weights: Tensor) -> Tensor:
    return functional.max_pool2d(functional.conv2d(x, weights, padding=1).relu(), 2)


def overlapping(x: Tensor, weights: Tensor) -> Tensor:
    """A number may be the largest of several windows."""
    return functional.max_pool2d(functional.conv2d(x, weights).relu(), 3, stride=1, padding=1)


def looked_at(x: Tensor, weights: Tensor) -> Tensor:
    """What is cut off is used beside its pooling."""
    cut = functional.conv2d(x, weights, padding=1).relu()
    return functional.max_pool2d(cut, 2) + cut[..., ::2, ::2]


def recorded(net: Net, *tensors: Tensor) -> GraphModule:
    def slopes(x: Tensor, weights: Tensor, down: Tensor) -> tuple[Tensor, ...]:
        def loss(x: Tensor, weights: Tensor) -> Tensor:
            return (net(x, weights).flatten(1) * down).sum()

        found: tuple[Tensor, ...] = torch.func.grad(loss, argnums=(0, 1))(x, weights)
        return found

    return make_fx(slopes)(*tensors)


def examples(net: Net) -> tuple[Tensor, Tensor, Tensor]:
    """Small whole numbers: many are equal, many windows have nothing above 0."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 2, (3, 2, 8, 8), generator=draw).float()
    weights = torch.randint(-1, 2, (4, 2, 3, 3), generator=draw).float()
    weights = weights.contiguous(memory_format=CHANNELS_LAST)
    down = torch.randn(net(x, weights).flatten(1).shape, generator=draw)
    return x.contiguous(memory_format=CHANNELS_LAST), weights, down


@pytest.mark.parametrize(("net", "swaps"), [(pooled, 1), (overlapping, 1), (looked_at, 0)])
def test_the_same_bits_with_less_to_cut_off(net: Net, swaps: int) -> None:
    tensors = examples(net)
    module = recorded(net, *tensors)
    module.graph.eliminate_dead_code()
    module.recompile()
    expected = module(*tensors)
    relu = next(n for n in module.graph.nodes if n.target is torch.ops.aten.relu.default)
    before = relu.args[0]
    pool_before_relu(module.graph)
    module.graph.lint()
    module.recompile()
    relus = [n for n in module.graph.nodes if n.target is torch.ops.aten.relu.default]
    assert [n.args[0] is before for n in relus] == [not swaps]
    for one, other in zip(module(*tensors), expected, strict=True):
        assert torch.equal(one, other)
