"""Vectors, and the networks of one or a few fully connected layers."""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from bouquet.models.config import Layout, ModelConfig, Shape


class Chain(nn.Sequential):
    """Named layers, one after the other.

    Parameters
    ----------
    layout : Layout
        Where the splits are.
    **layers : nn.Module
        The layers by name, from input to output.
    """

    def __init__(self, layout: Layout, **layers: nn.Module) -> None:
        super().__init__(OrderedDict(layers))
        self.layout = layout


class Vector(nn.Module):
    """A point w, the same for every example: the unknown of a quadratic problem."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """The point, once for every example."""
        return self.w.expand(len(x), -1)


def vector(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """One parameter ``w``, at zero until the caller says where the problem starts."""
    return Vector(input_shape[-1])


def linear(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    output = nn.Linear(math.prod(input_shape), classes)
    return Chain(Layout(), flatten=nn.Flatten(), output=output)


def mlp(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """Fully connected layers with ReLU between them."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    width = math.prod(input_shape)
    for number in range(1, config.layers + 1):
        layers[f"hidden{number}"] = nn.Linear(width, config.hidden)
        layers[f"relu{number}"] = nn.ReLU()
        width = config.hidden
    layout = Layout(adapters="hidden*", split_input="hidden1")
    return Chain(layout, **layers, output=nn.Linear(width, classes))
