"""Personal parts that splits add to a model.

Adapters and heads hang on the layers they follow, so the names of a model's own weights
stay as they are: training can go on with adapters where it stopped without them.
"""

import copy
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, relu

from bouquet.core.errors import BadInput
from bouquet.models.config import Layout
from bouquet.models.images import group_norm
from bouquet.models.text import Scores


class Bottleneck(nn.Module):
    """Houlsby et al. (2019): down to a few numbers, back up, and added to the input."""

    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)
        _zero(self.up)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` until the adapter is trained."""
        changed: Tensor = x + self.up(relu(self.down(x)))
        return changed


class Pointwise(nn.Module):
    """Rebuffi et al. (2017), with group norm: a 1x1 convolution added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.conv = nn.Conv2d(channels, channels, kernel_size=1, bias=False)
        _zero(self.conv)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` until the adapter is trained."""
        changed: Tensor = x + self.conv(self.norm(x))
        return changed


def add_adapters(module: nn.Module, layout: Layout, bottleneck: int) -> None:
    """Follow every layer the layout names with an adapter, called ``adapter`` within it."""
    patterns = layout.adapters.split()
    for name, layer in list(module.named_modules()):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            layer.adapter = _adapter(name, layer, bottleneck)
            layer.register_forward_hook(_adapted)


def _adapter(name: str, layer: nn.Module, bottleneck: int) -> nn.Module:
    if isinstance(layer, nn.Conv2d):
        return Pointwise(layer.out_channels)
    return Bottleneck(_linear(name, layer).out_features, bottleneck)


def _named(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        raise BadInput(f"A model's layout names a layer {name!r} that is not there.") from error


def _linear(name: str, layer: nn.Module) -> nn.Linear:
    if not isinstance(layer, nn.Linear):
        raise BadInput(
            f"A model's layout must name nn.Linear or nn.Conv2d layers, not {name!r}, which is "
            f"{type(layer).__name__}."
        )
    return layer


def _adapted(layer: nn.Module, _: object, output: Tensor) -> Tensor:
    adapted: Tensor = layer.adapter(output)  # type: ignore[operator]
    return adapted


class SplitLinear(nn.Module):
    """Two layers side by side, each for its part of the input; their outputs are joined."""

    def __init__(self, whole: nn.Linear, inputs: float) -> None:
        super().__init__()
        self.reads = _part(whole.in_features, inputs)
        units = _part(whole.out_features, inputs)
        bias = whole.bias is not None
        self.shared = nn.Linear(whole.in_features - self.reads, whole.out_features - units, bias)
        self.personal = nn.Linear(self.reads, units, bias)

    def forward(self, x: Tensor) -> Tensor:
        """What the shared layer makes of the first inputs, and the personal of the last."""
        first = x.shape[-1] - self.reads
        return torch.cat([self.shared(x[..., :first]), self.personal(x[..., first:])], dim=-1)


class SplitConv(nn.Module):
    """The same for an image: its upper rows are for one convolution, its lower for the other."""

    def __init__(self, whole: nn.Conv2d, inputs: float) -> None:
        super().__init__()
        self.inputs = inputs
        self.shared, self.personal = whole, copy.deepcopy(whole)

    def forward(self, x: Tensor) -> Tensor:
        """What the shared convolution makes of the upper rows, and the personal of the lower."""
        first = x.shape[-2] - _part(x.shape[-2], self.inputs)
        upper, lower = self.shared(x[..., :first, :]), self.personal(x[..., first:, :])
        return torch.cat([upper, lower], dim=-2)


def split_input(module: nn.Module, layout: Layout, inputs: float) -> None:
    """Divide the layer that reads the input into a shared and a personal one (figure 1c)."""
    name = layout.split_input
    whole = _named(module, name)
    if isinstance(whole, nn.Conv2d):
        module.set_submodule(name, SplitConv(whole, inputs))
    else:
        module.set_submodule(name, SplitLinear(_linear(name, whole), inputs))


def add_head(module: nn.Module, layout: Layout) -> None:
    """Give the model a second, personal output layer and learn how to weigh the two.

    The generalized additive model (section 2, figure 2b) on a shared representation: with
    probabilities h and h_i, the prediction is θ h + (1 − θ) h_i, θ = sigmoid(``mix``).
    """
    shared = _named(module, layout.output)
    if isinstance(shared, Scores):
        shared.personal = nn.Linear(shared.in_features, shared.out_features, bias=False)
    else:
        shared.personal = copy.deepcopy(_linear(layout.output, shared))
    shared.mix = nn.Parameter(torch.zeros(()))
    shared.register_forward_hook(_mixed)


def _mixed(head: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The logarithm of the mixed probabilities, which are scores as good as any."""
    mix: Tensor = head.mix  # type: ignore[assignment]
    own: Tensor = head.personal(given[0])  # type: ignore[operator]
    return torch.logaddexp(
        logsigmoid(mix) + output.log_softmax(-1), logsigmoid(-mix) + own.log_softmax(-1)
    )


def _part(size: int, inputs: float) -> int:
    """How many of several inputs are personal: some, but not all."""
    if size < 2:
        raise BadInput("personal.split must not be 'split-input' where there is only one input.")
    return min(max(1, round(size * inputs)), size - 1)


def _zero(layer: nn.Linear | nn.Conv2d) -> None:
    """Make a layer answer 0, so that what it is added to starts as it was."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
