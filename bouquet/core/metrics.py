"""Metrics: of each example, or of all examples of a client at once.

What is not defined on a client's examples, such as the AUC where all are of one class, is NaN:
no number, rather than a 0 that would count.
"""

import torch
from torch import Tensor
from torch.nn import functional

# The target of a position of a text that does not count, as torch's cross entropy has it.
NO_TARGET = -100
UNDEFINED = float("nan")


def accuracy(output: Tensor, y: Tensor) -> Tensor:
    """Whether each example is predicted right; of a text, at which share of its positions.

    Of several labels, whether all of them are.
    """
    if y.is_floating_point():
        return ((output > 0) == (y > 0.5)).all(dim=1)
    return _shares(output.argmax(dim=-1) == y, output, y)


def top(output: Tensor, y: Tensor, among: int) -> Tensor:
    """Whether each example's class is among so many that score highest; of a text, a share."""
    best = output.topk(among, dim=-1).indices
    return _shares((best == y.unsqueeze(-1)).any(dim=-1), output, y)


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """Each example's squared error, the mean over its values."""
    return (output - y).square().mean(dim=1)


def absolute_error(output: Tensor, y: Tensor) -> Tensor:
    """Each example's absolute error, the mean over its values."""
    return (output - y).abs().mean(dim=1)


def balanced_accuracy(output: Tensor, y: Tensor) -> Tensor:
    """The mean over the classes there are of the share of their examples that is right."""
    guess, truth, classes = _guessed(output, y)
    held = torch.bincount(truth, minlength=classes)
    hit = torch.bincount(truth[guess == truth], minlength=classes)
    return _mean(hit.double() / held, held > 0)


def f1(output: Tensor, y: Tensor) -> Tensor:
    """The mean of F1 over classes or labels, without those neither there nor predicted."""
    if y.is_floating_point():
        said, there = output > 0, y > 0.5
        hit, sizes = (said & there).sum(dim=0), said.sum(dim=0) + there.sum(dim=0)
    else:
        guess, truth, classes = _guessed(output, y)
        hit = torch.bincount(truth[guess == truth], minlength=classes)
        sizes = torch.bincount(guess, minlength=classes) + torch.bincount(truth, minlength=classes)
    return _mean(2 * hit.double() / sizes, sizes > 0)


def auc(output: Tensor, y: Tensor) -> Tensor:
    """The mean area under the ROC curve over labels, or over classes each against the rest.

    That is how likely an example that has the label scores higher than one that has not, equal
    scores counting half. Labels that all examples have, or none, are left out.
    """
    if y.is_floating_point():
        scores, there = output, y > 0.5
    else:
        logits, truth = _positions(output, y)
        scores = logits.softmax(dim=1)
        there = functional.one_hot(truth, logits.shape[1]).bool()
    found = [_area(scores[:, one], there[:, one]) for one in range(scores.shape[1])]
    areas = torch.stack(found)
    return _mean(areas, ~areas.isnan())


def r2(output: Tensor, y: Tensor) -> Tensor:
    """The mean over values of 1 less the squared error by that of their mean.

    Values that are the same in all examples have no such number.
    """
    if not len(y):
        return torch.tensor(UNDEFINED)
    error = (y - output).square().sum(dim=0)
    spread = (y - y.mean(dim=0)).square().sum(dim=0)
    return _mean(1 - error / spread, (y != y[0]).any(dim=0))


def perplexity(output: Tensor, y: Tensor) -> Tensor:
    """The exponential of the mean cross entropy, of texts over all their positions."""
    logits, truth = _positions(output, y)
    return functional.cross_entropy(logits, truth).exp()


def _shares(right: Tensor, output: Tensor, y: Tensor) -> Tensor:
    if y.ndim == 1:
        return right
    return right.sum(dim=1).to(output.dtype) / positions(y)


def positions(y: Tensor) -> Tensor:
    """How many positions of each text count."""
    return (y != NO_TARGET).sum(dim=1).clamp(min=1)


def _positions(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and classes of examples, or of all positions of texts that count."""
    truth = y.flatten()
    return output.reshape(len(truth), -1)[truth != NO_TARGET], truth[truth != NO_TARGET]


def _guessed(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    logits, truth = _positions(output, y)
    return logits.argmax(dim=1), truth, logits.shape[1]


def _mean(numbers: Tensor, defined: Tensor) -> Tensor:
    """The mean of those that are defined; NaN, and no number, where none is."""
    return numbers[defined].mean()


def _area(scores: Tensor, there: Tensor) -> Tensor:
    """By the sum of ranks, equal scores sharing theirs (Mann and Whitney)."""
    _, place, count = scores.unique(return_inverse=True, return_counts=True)
    ranks = (count.cumsum(dim=0) - (count.double() - 1) / 2)[place]
    has = there.sum().double()
    area = (ranks[there].sum() - has * (has + 1) / 2) / (has * (len(there) - has))
    return area if scores.isfinite().all() else torch.full_like(area, UNDEFINED)
