"""How running statistics follow training: a model's forward passes renew them, no gradient does.

A loss tells the statistics that the model it was taken at has after the pass (:func:`tell`), and
:class:`Followed` brings them to the parts of the point that the model was made of. Each part has
the mean of what was told, by the part's own share in each model: the shared half of a mixture that
is held constant has none. A part that no model was made of keeps what it had.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from bouquet.core.trees import Tree, is_statistic

P = TypeVar("P", bound=Tree | tuple[Any, ...])
S = TypeVar("S")
# What was told: the statistics of a model before a pass, and after it.
Told = list[tuple[Tree, Tree]]

_listener: ContextVar[Told | None] = ContextVar("listener", default=None)


def tell(model: Tree, new: Tree) -> None:
    """Say which statistics a model has after a pass, to whoever listens."""
    told = _listener.get()
    if told is not None:
        told.append(({name: model[name] for name in new}, new))


def unheard(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss that tells nothing: one inside ``torch.func.grad``, whose tensors end with it."""

    def silent(*given: Any) -> Tensor:
        with _listening(None):
            return loss(*given)

    return silent


@contextmanager
def _listening(told: Told | None) -> Iterator[None]:
    before = _listener.set(told)
    try:
        yield
    finally:
        _listener.reset(before)


class Followed(Generic[P, S]):
    """An objective and a projection that make a point's statistics follow its steps.

    Parameters
    ----------
    objective : callable
        Of a point and a batch; whatever it is, its slope in statistics is 0.
    project : callable, optional
        What else is done to a point after a step.
    """

    def __init__(
        self, objective: Callable[[P, S], Tensor], project: Callable[[P], P] | None
    ) -> None:
        self._objective, self._project = objective, project
        self._next: dict[tuple[str, str], Tensor] = {}

    def objective(self, point: P, batch: S) -> Tensor:
        """The objective, whose losses are listened to."""
        told: Told = []
        with _listening(told):
            value = self._objective(point, batch)
        self._next = _renewed(point, told)
        # Where nothing but statistics moves there is no slope to follow.
        return value if value.requires_grad else value + torch.zeros_like(value).requires_grad_()

    def project(self, point: P) -> P:
        """The point after a step, with the statistics that its losses told."""
        if self._project is not None:
            point = self._project(point)
        if isinstance(point, dict):
            return {n: self._next.get(("", n), value) for n, value in point.items()}  # type: ignore[return-value]
        trees = {
            field: {n: self._next.get((field, n), value) for n, value in tree.items()}
            for field, tree in _trees(point)
        }
        return point._replace(**trees)  # type: ignore[attr-defined, no-any-return]


def _trees(point: Tree | tuple[Any, ...]) -> list[tuple[str, Tree]]:
    if isinstance(point, dict):
        return [("", point)]
    fields = point._asdict()  # type: ignore[attr-defined]
    return [(field, tree) for field, tree in fields.items() if isinstance(tree, dict)]


def _renewed(point: Tree | tuple[Any, ...], told: Told) -> dict[tuple[str, str], Tensor]:
    """A point's statistics by field and name, after what was told of models made of it."""
    found = {
        (field, name): value
        for field, tree in _trees(point)
        for name, value in tree.items()
        if is_statistic(name)
    }
    kept = {place: value.detach() for place, value in found.items()}
    moving = {place: value for place, value in found.items() if value.requires_grad}
    models = [
        (before[name], new[name])
        for before, new in told
        for name in before
        if before[name].requires_grad
    ]
    if not moving or not models:
        return kept
    # Only what schemes do to a tree lies between a point and its models, so this is cheap: the
    # slope of a model's statistic in a point's is the share that one has in the other.
    before, new = zip(*models, strict=True)
    heard, shares = (
        torch.autograd.grad(
            before, list(moving.values()), weights, retain_graph=True, materialize_grads=True
        )
        for weights in (new, [torch.ones_like(one) for one in new])
    )
    for place, sum_, share in zip(moving, heard, shares, strict=True):
        kept[place] = torch.where(share > 0, sum_ / share, kept[place])
    return kept
