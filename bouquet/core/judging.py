"""How a model's output on an example is judged: losses to train by, metrics to compare by."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from bouquet.core import metrics
from bouquet.core.measure import ACCURATE, CLASSES, SEVERAL, VALUES, Measure
from bouquet.core.metrics import accuracy

# From the outputs and targets of a batch to a number for each example.
Judge = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Each example's cross entropy; of a text, the mean over its positions.

    Positions with the target -100, which torch's cross entropy knows as none, do not count.
    """
    if y.ndim == 1:
        return functional.cross_entropy(output, y, reduction="none")
    losses = functional.cross_entropy(output.transpose(1, 2), y, reduction="none")
    return losses.sum(dim=1) / metrics.positions(y)


def binary_cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Each example's cross entropy of having a label or not, the mean over its labels."""
    return functional.binary_cross_entropy_with_logits(output, y, reduction="none").mean(dim=1)


@dataclass(frozen=True)
class Metric(Measure):
    """A measure, and how it is taken.

    Parameters
    ----------
    of : callable
        Judges a batch; a client's number is the mean over its test examples.
    whole : bool
        Whether ``of`` gives one number for all examples of a client instead, NaN for none.
    targets : tuple of str
        What it can judge; a user's own may judge anything.
    """

    of: Judge = accuracy
    whole: bool = False
    targets: tuple[str, ...] = (CLASSES, VALUES, SEVERAL)


ACCURACY = Metric(ACCURATE.name, targets=(CLASSES, SEVERAL))

LOSSES: dict[str, Judge] = {
    "cross-entropy": cross_entropy,
    "mse": metrics.squared_error,
    "mae": metrics.absolute_error,
    "bce": binary_cross_entropy,
}
# What each kind of targets may be trained by, the usual one first.
LOSSES_FOR = {CLASSES: ("cross-entropy",), VALUES: ("mse", "mae"), SEVERAL: ("bce",)}

TOPS = (2, 3, 5, 10)
METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        ACCURACY,
        Metric("balanced-accuracy", of=metrics.balanced_accuracy, whole=True, targets=(CLASSES,)),
        Metric("f1", of=metrics.f1, whole=True, targets=(CLASSES, SEVERAL)),
        Metric("auc", of=metrics.auc, whole=True, targets=(CLASSES, SEVERAL)),
        *(
            Metric(f"top-{k}", of=functools.partial(metrics.top, among=k), targets=(CLASSES,))
            for k in TOPS
        ),
        Metric("perplexity", True, metrics.perplexity, whole=True, targets=(CLASSES,)),
        Metric("r2", of=metrics.r2, whole=True, targets=(VALUES,)),
        Metric("mse", True, metrics.squared_error, targets=(VALUES,)),
        Metric("mae", True, metrics.absolute_error, targets=(VALUES,)),
    )
}
USUAL_METRIC = {CLASSES: ACCURACY.name, VALUES: "r2", SEVERAL: "f1"}
