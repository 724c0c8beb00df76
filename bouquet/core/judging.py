"""How a model's output on an example is judged: losses to train by, metrics to compare by."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from bouquet.core.measure import ACCURATE, Measure

# From the outputs and targets of a batch to a number for each example.
Judge = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Each example's cross entropy; of a text, the mean over its positions.

    Positions with the target -100, which torch's cross entropy knows as none, do not count.
    """
    if y.ndim == 1:
        return functional.cross_entropy(output, y, reduction="none")
    losses = functional.cross_entropy(output.transpose(1, 2), y, reduction="none")
    return losses.sum(dim=1) / _positions(y)


def accuracy(output: Tensor, y: Tensor) -> Tensor:
    """Whether each example is predicted right; of a text, at which share of its positions."""
    if y.ndim == 1:
        return output.argmax(dim=1) == y
    right = (output.argmax(dim=2) == y).sum(dim=1)
    return right.to(output.dtype) / _positions(y)


def _positions(y: Tensor) -> Tensor:
    return (y != -100).sum(dim=1).clamp(min=1)


@dataclass(frozen=True)
class Metric(Measure):
    """A measure, and how it is taken.

    Parameters
    ----------
    of : callable
        Judges a batch; a client's number is the mean over its test examples.
    """

    of: Judge = accuracy


ACCURACY = Metric(ACCURATE.name)

LOSSES: dict[str, Judge] = {"cross-entropy": cross_entropy}
METRICS: dict[str, Metric] = {one.name: one for one in (ACCURACY,)}
