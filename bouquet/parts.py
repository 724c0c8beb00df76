"""A user's own loss and metric: looked up, named, and tried before anything is trained."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.judging import LOSSES, LOSSES_FOR, METRICS, TOPS, Judge, Metric
from bouquet.core.measure import CLASSES
from bouquet.core.task import Task
from bouquet.data import FederatedData
from bouquet.imports import imported, is_path
from bouquet.settings import Settings

# What columns are called already: shared_loss, and a scheme's personal_norm.
TAKEN = (*METRICS, "loss", "norm")


def loss_of(name: str, classes: int, targets: str = CLASSES) -> Judge | None:
    """The loss of a name or path; none for that of classes or of a quadratic problem."""
    if is_path(name):
        return _function(name, "loss")
    if name == "auto":
        return None if targets == CLASSES else LOSSES[LOSSES_FOR[targets][0]]
    if not classes:
        raise BadInput(f"loss must be 'auto' or your own for data without classes, not {name!r}.")
    if name not in LOSSES_FOR[targets]:
        fitting = ", ".join(repr(one) for one in ("auto", *LOSSES_FOR[targets]))
        raise BadInput(f"loss must be {fitting} or your own for {_said(targets)}, not {name!r}.")
    return LOSSES[name]


def metric_of(name: str, classes: int, targets: str = CLASSES) -> Metric:
    """The metric of a name or path."""
    if not is_path(name):
        return _fitting(METRICS[name], classes, targets)
    function = _function(name, "metric")
    said = getattr(function, "__name__", type(function).__name__)
    called = "-".join(re.findall(r"[A-Za-z0-9]+", said))
    if not called or called in TAKEN:
        raise BadInput(
            f"metric {name!r} must have a name of its own, of letters and digits and none of "
            f"{', '.join(TAKEN)}, not {said!r}."
        )
    lower, whole = (getattr(function, one, False) is True for one in ("lower_is_better", "whole"))
    return Metric(called, lower, function, whole)


def _fitting(metric: Metric, classes: int, targets: str) -> Metric:
    """The metric, unless it cannot judge such targets."""
    if not classes and metric != METRICS["accuracy"]:  # which then just is not there
        raise BadInput(
            f"metric must be 'auto' or your own for data without classes, not {metric.name!r}."
        )
    if targets not in metric.targets:
        fitting = [one.name for one in METRICS.values() if targets in one.targets]
        listed = ", ".join(map(repr, fitting))
        raise BadInput(
            f"metric must be one of {listed} or your own for {_said(targets)}, not {metric.name!r}."
        )
    for among in TOPS:
        if metric.name == f"top-{among}" and classes <= among:
            raise BadInput(
                f"metric must not be {metric.name!r} for {classes} classes: all would be right."
            )
    return metric


def _said(targets: str) -> str:
    return targets if targets == CLASSES else f"data.labels {targets!r}"


def _function(name: str, key: str) -> Callable[..., Any]:
    found: Any = imported(name, key)
    if not callable(found) or isinstance(found, type):
        raise BadInput(f"{key} {name!r} must name a function, not {found!r}.")
    return found  # type: ignore[no-any-return]  # whatever it is, it was seen to be callable


def try_measures(settings: Settings, task: Task, data: FederatedData) -> None:
    """Ask the user's own loss and metric about two examples, and refuse what they cannot do."""
    loss, metric = settings.run.loss, settings.run.metric
    if not is_path(loss) and not is_path(metric):
        return
    x, y = data.x[:2], data.y[:2]
    output = task.output(task.initial, x).detach()
    if is_path(metric) and task.metric.whole:
        _tried_whole(metric, task.metric.of, output, y)
    elif is_path(metric):
        _tried("metric", metric, task.metric.of, output, y)
    if is_path(loss) and task.criterion is not None:
        points = output.requires_grad_()
        losses = _tried("loss", loss, task.criterion, points, y)
        if not losses.is_floating_point() or not losses.requires_grad:
            raise BadInput(
                f"loss {loss!r} must be differentiable in the output: torch's own functions of "
                "it all the way, without argmax, item or numpy."
            )


def _tried(key: str, name: str, judge: Judge, output: Tensor, y: Tensor) -> Tensor:
    """What a function says of two examples: a number for each, which the other has no part in."""
    where = f"{key} {name!r}"
    with _refusing(where, output, y):
        found, alone = judge(output, y), judge(output[:1], y[:1])
    for said, count in ((found, len(y)), (alone, 1)):
        if not isinstance(said, Tensor) or said.shape != (count,):
            shape = tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
            raise BadInput(
                f"{where} must give a number for every example, a tensor of shape {(count,)} for "
                f"{count} of them, not {shape}."
            )
    if not torch.allclose(found[:1].double(), alone.double(), rtol=1e-4, equal_nan=True):
        raise BadInput(f"{where} must judge every example by itself, whatever is beside it.")
    return found


def _tried_whole(name: str, judge: Judge, output: Tensor, y: Tensor) -> None:
    """See that a function which judges a client's examples together gives one number."""
    where = f"metric {name!r}"
    with _refusing(where, output, y):
        found: Any = judge(output.double(), y)
    number = found.ndim == 0 if isinstance(found, Tensor) else isinstance(found, (int, float))
    if not number:
        raise BadInput(f"{where} is 'whole' and must give one number for all examples of a client.")


@contextmanager
def _refusing(where: str, output: Tensor, y: Tensor) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the user's code raises
        raise BadInput(
            f"{where} fails on outputs of shape {tuple(output.shape)} and targets of shape "
            f"{tuple(y.shape)}: {type(error).__name__}: {error}."
        ) from error
