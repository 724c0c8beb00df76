"""From what a client measured to what its model is given: gaps filled, like sizes.

Both by the client's own training examples, so that nothing need leave the device.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Floats = NDArray[np.float64]

LARGE = 1000.0  # an input this far from 0 makes the usual learning rates diverge
UNLIKE = 100.0  # and one that varies so much more than others drowns them


@dataclass(frozen=True)
class Preparation:
    """How one client's inputs are made: gaps are filled, then ``(x - shift) / size``.

    Parameters
    ----------
    fill : Tensor or None
        By feature, what a missing input (NaN) becomes; None where none may be missing.
    shift, size : Tensor
        By feature; ``size`` is never 0.
    """

    fill: Tensor | None
    shift: Tensor
    size: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs as the model takes them."""
        if self.fill is not None:
            x = torch.where(x.isnan(), self.fill, x)
        return (x - self.shift) / self.size

    def to_json(self) -> str:
        """As text that :meth:`from_json` reads to the last bit."""
        parts = {"fill": self.fill, "shift": self.shift, "size": self.size}
        return json.dumps({k: v.flatten().tolist() for k, v in parts.items() if v is not None})

    @classmethod
    def from_json(cls, text: str, shape: tuple[int, ...], dtype: torch.dtype) -> "Preparation":
        """The preparation of inputs of a shape and type."""
        parts: Mapping[str, list[float]] = json.loads(text)
        read = {k: torch.tensor(v, dtype=dtype).reshape(shape) for k, v in parts.items()}
        return cls(read.get("fill"), read["shift"], read["size"])


class Prepared(nn.Module):
    """A model that takes inputs as they were measured.

    Parameters
    ----------
    preparation : Preparation
        What comes first.
    model : Module
        What takes the result.
    """

    def __init__(self, preparation: Preparation, model: nn.Module) -> None:
        super().__init__()
        self.preparation = preparation
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """What the model says of prepared inputs."""
        said: Tensor = self.model(self.preparation(x))
        return said


def preparation(train: Tensor, scale: str, missing: str) -> Preparation:
    """How a client's inputs are to be made.

    Parameters
    ----------
    train : Tensor
        Its training examples; NaN where something is missing.
    scale : str
        ``none``, ``standard``, ``robust`` or ``minmax``. A feature that never changes keeps its
        size.
    missing : str
        ``refuse``, ``mean`` or ``zero``. A feature that is always missing becomes 0.
    """
    # In double, and of this client alone: the same wherever and beside whomever it lives.
    values = train.double().numpy()
    gaps = np.isnan(values)
    fill = np.zeros(values.shape[1:])
    if missing == "mean":
        there = (~gaps).sum(axis=0)
        fill = np.where(gaps, 0.0, values).sum(axis=0) / np.maximum(there, 1)
    values = np.where(gaps, fill, values)
    shift, size = _MEASURES[scale](values)
    size = np.where(values.max(axis=0) == values.min(axis=0), 1.0, size)

    def typed(numbers: Floats) -> Tensor:
        return torch.from_numpy(np.asarray(numbers)).to(train.dtype)

    sizes = typed(size)
    sizes[sizes == 0] = 1  # hardly anything differs, or less than the type can tell
    return Preparation(None if missing == "refuse" else typed(fill), typed(shift), sizes)


def _as_is(values: Floats) -> tuple[Floats, Floats]:
    return np.zeros(values.shape[1:]), np.ones(values.shape[1:])


def _standard(values: Floats) -> tuple[Floats, Floats]:
    return values.mean(axis=0), values.std(axis=0)


def _robust(values: Floats) -> tuple[Floats, Floats]:
    low, middle, high = np.percentile(values, [25, 50, 75], axis=0)
    return middle, high - low


def _minmax(values: Floats) -> tuple[Floats, Floats]:
    low = values.min(axis=0)
    return low, values.max(axis=0) - low


_MEASURES = {"none": _as_is, "standard": _standard, "robust": _robust, "minmax": _minmax}


def size_warning(x: Tensor, scale: str) -> str:
    """A sentence about inputs of sizes that training cannot cope with; empty if there are none."""
    if scale != "none" or not x.is_floating_point() or not x.numel():
        return ""
    values = x[:: max(1, len(x) // 10_000)].flatten(1).nan_to_num(0)  # some say enough
    largest, spreads = float(values.abs().max()), values.std(dim=0, correction=0)
    spreads = spreads[spreads > 0]
    if largest < LARGE and (not len(spreads) or spreads.max() < UNLIKE * spreads.median()):
        return ""
    return (
        f"The inputs are of very different or large size (up to {largest:.4g}): training may come "
        "to nothing; data.scale=standard brings each to a like size."
    )


def value_warning(y: Tensor) -> str:
    """A sentence about values to predict that are too large to train by; empty for none."""
    largest = float(y.abs().max()) if y.numel() else 0.0
    if largest < LARGE:
        return ""
    return (
        f"The values to predict are large (up to {largest:.4g}): training may come to nothing; "
        "give them in a larger unit, such as thousands."
    )
