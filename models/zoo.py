"""The models: small modules without state of their own, so that a cohort can train batched.

All run under ``torch.func.functional_call`` and ``vmap``: no batch norm, nothing in place.
The last layer is called ``output``, whatever comes before it.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from strategies.core.config import key
from strategies.core.errors import BadInput
from strategies.core.seeding import generator

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelConfig:
    """The keys under ``model``."""

    name: str = key("", "the model; empty for the data set's own, see `bouquet models`")
    hidden: int = key(200, "mlp: units of each hidden layer", low=1)
    layers: int = key(2, "mlp: hidden layers", low=1)


@dataclass(frozen=True)
class ModelInfo:
    """A model's entry in the registry.

    Parameters
    ----------
    name : str
        What ``model.name`` calls it.
    doc : str
        What it is, in one line.
    builder : callable
        From a config, an example's shape and the number of classes to a module.
    classifies : bool
        Whether it tells classes apart, rather than solves a quadratic problem.
    """

    name: str
    doc: str
    builder: Callable[[ModelConfig, Shape, int], nn.Module]
    classifies: bool = True


def build(
    config: ModelConfig, input_shape: Shape, classes: int, seed: int, dtype: torch.dtype
) -> nn.Module:
    """A model with initial weights that depend on the arguments alone.

    Parameters
    ----------
    config : ModelConfig
        Which model, and its size.
    input_shape : tuple of int
        The shape of one example.
    classes : int
        How many classes to tell apart; 0 for a quadratic problem.
    seed : int
        Of the initial weights; torch's own generator is left as it was.
    dtype : torch.dtype
        Of the weights, which are the same numbers in every dtype up to rounding.
    """
    fitting = [info.name for info in MODELS.values() if info.classifies == (classes > 0)]
    if config.name not in MODELS:
        raise BadInput(f"model.name must be one of {_listed(list(MODELS))}, not {config.name!r}.")
    if config.name not in fitting:
        problem = "classification" if classes else "a quadratic problem"
        raise BadInput(
            f"model.name must be one of {_listed(fitting)} for {problem}, not {config.name!r}."
        )
    with torch.random.fork_rng(devices=[]):
        # The CPU's generator and no other: torch.manual_seed would seed the GPUs' as well.
        torch.default_generator.manual_seed(int(generator(seed, "model").integers(2**63)))
        return MODELS[config.name].builder(config, input_shape, classes).to(dtype)


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


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
    return _chain(flatten=nn.Flatten(), output=nn.Linear(math.prod(input_shape), classes))


def mlp(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """Fully connected layers with ReLU between them."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    width = math.prod(input_shape)
    for number in range(1, config.layers + 1):
        layers[f"hidden{number}"] = nn.Linear(width, config.hidden)
        layers[f"relu{number}"] = nn.ReLU()
        width = config.hidden
    return _chain(**layers, output=nn.Linear(width, classes))


def cnn(config: ModelConfig, input_shape: Shape, classes: int) -> nn.Module:
    """Two 5x5 convolutions with pooling and a hidden layer, as in McMahan et al. (FedAvg)."""
    channels, height, width = _image(input_shape)
    return _chain(
        image=nn.Unflatten(1, (1, height, width)) if len(input_shape) == 1 else nn.Identity(),
        conv1=nn.Conv2d(channels, 32, kernel_size=5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, kernel_size=5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        hidden=nn.Linear(64 * (height // 4) * (width // 4), 512),
        relu3=nn.ReLU(),
        output=nn.Linear(512, classes),
    )


def _image(input_shape: Shape) -> tuple[int, int, int]:
    """Channels, height and width of an example; a flat one is a square of one channel."""
    shape = input_shape
    if len(shape) == 1:
        side = math.isqrt(shape[0])
        shape = (shape[0] // side**2, side, side)
    # Each pooling halves the sides, and half of one pixel is none.
    if len(shape) != 3 or math.prod(shape) != math.prod(input_shape) or min(shape[1:]) < 4:
        raise BadInput(
            "model.name must not be 'cnn' for examples of shape "
            f"{' x '.join(map(str, input_shape))}: it needs channels x height x width, or a flat "
            "square image, with sides of at least 4."
        )
    return shape[0], shape[1], shape[2]


def _chain(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


MODELS: dict[str, ModelInfo] = {
    entry.name: entry
    for entry in (
        ModelInfo("cnn", "two 5x5 convolutions (32, 64) with pooling, then 512 units", cnn),
        ModelInfo("linear", "multinomial logistic regression", linear),
        ModelInfo("mlp", "model.layers hidden layers of model.hidden units, ReLU", mlp),
        ModelInfo(
            "vector", "one vector w, the unknown of a quadratic problem", vector, classifies=False
        ),
    )
}
