"""A user's own loss and metric: looked up, named, and tried before anything is trained."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.judging import LOSSES, METRICS, Judge, Metric
from bouquet.core.task import Task
from bouquet.data import FederatedData
from bouquet.imports import imported, is_path
from bouquet.settings import Settings

# What columns are called already: shared_loss, and a scheme's personal_norm.
TAKEN = (*METRICS, "loss", "norm")


def loss_of(name: str, classes: int) -> Judge | None:
    """The loss of a name or path; none for the data's own."""
    if is_path(name):
        return _function(name, "loss")
    if name != "auto" and not classes:
        raise BadInput(f"loss must be 'auto' or your own for data without classes, not {name!r}.")
    return None if name == "auto" else LOSSES[name]


def metric_of(name: str) -> Metric:
    """The metric of a name or path."""
    if not is_path(name):
        return METRICS[name]
    function = _function(name, "metric")
    said = getattr(function, "__name__", type(function).__name__)
    called = "-".join(re.findall(r"[A-Za-z0-9]+", said))
    if not called or called in TAKEN:
        raise BadInput(
            f"metric {name!r} must have a name of its own, of letters and digits and none of "
            f"{', '.join(TAKEN)}, not {said!r}."
        )
    return Metric(called, getattr(function, "lower_is_better", False) is True, function)


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
    if is_path(metric):
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
    try:
        found, alone = judge(output, y), judge(output[:1], y[:1])
    except Exception as error:  # whatever the user's code raises
        raise BadInput(
            f"{where} fails on outputs of shape {tuple(output.shape)} and targets of shape "
            f"{tuple(y.shape)}: {type(error).__name__}: {error}."
        ) from error
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
