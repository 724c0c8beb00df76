"""The one training loop."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from strategies.core.parsing import parsing
from strategies.core.trees import Tree


class Step(Protocol):
    """What a step is taken on: a batch, or several of them."""

    @property
    def active(self) -> Tensor:
        """1, or 0 for a step that only other clients take."""


P = TypeVar("P", bound=Tree | tuple[Any, ...])
S = TypeVar("S", bound=Step)


def slope(objective: Callable[[P, S], Tensor], point: P, batch: S) -> P:
    """The gradient of an objective, by plain autograd."""
    leaves: list[Tensor] = []

    def leaf(value: Tensor) -> Tensor:
        leaves.append(value.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad():
        value = objective(_each(leaf, point), batch)
    found = iter(torch.autograd.grad(value, leaves, materialize_grads=True))
    return _each(lambda _: next(found), point)


def slope_in_vmap(objective: Callable[[P, S], Tensor], point: P, batch: S) -> P:
    """The same inside ``torch.func.vmap``, where plain autograd cannot go."""
    return cast(P, functional_gradient(objective)(point, batch))


def functional_gradient(objective: Callable[..., Tensor]) -> Callable[..., Any]:
    """``torch.func.grad``: a gradient that can be batched and differentiated again.

    Its first use imports for more than a second, which a device that trains one client saves.
    """
    with parsing:
        _import_once()
    return torch.func.grad(objective)


@functools.cache
def _import_once() -> None:
    torch.func.grad(torch.sum)(torch.zeros(1))


@dataclass(frozen=True)
class Sgd:
    """How a local step is taken.

    Parameters
    ----------
    lr : float
        Step size η.
    clip : float
        Largest norm of a gradient; 0 for any.
    weight_decay : float
        Strength of the pull towards 0; 0 for none.
    gradient : callable
        ``slope``, or ``slope_in_vmap`` for clients that train together.
    """

    lr: float
    clip: float = 0.0
    weight_decay: float = 0.0
    gradient: Callable[..., Any] = slope


def descend(
    loss: Callable[[P, S], Tensor],
    params: P,
    batches: Sequence[S],
    sgd: Sgd,
    *,
    rates: Sequence[float] | None = None,
    project: Callable[[P], P] | None = None,
) -> P:
    """Take one gradient step per batch, all parts moving from the same point.

    Parameters
    ----------
    loss : callable
        The objective; autograd differentiates it in all of ``params`` at once.
    params : Tree, or a tuple of trees and tensors
        Where to start; left untouched. A tuple's parts move side by side, each
        clipped and decayed on its own; single tensors are neither.
    batches : sequence of Batch, or of anything that knows whether it is active
        One a step.
    sgd : Sgd
        Step size, clipping, decay.
    rates : sequence of float, optional
        A step size for each part of a tuple, instead of ``sgd.lr``.
    project : callable, optional
        Applied after every step, for example to stay in [0, 1].

    Returns
    -------
    Tree or tuple
        The end point, of the same type as ``params``.
    """

    # An inactive step has gradient 0 whatever the objective adds to the loss, so a
    # client that takes fewer steps than its neighbours stays where it is.
    def objective(point: P, batch: S) -> Tensor:
        return batch.active * loss(point, batch)

    # The first step leaves the caller's tensors alone; the next ones may overwrite ours,
    # which spares a new copy of the weights in every step. What a projection returns may
    # be anybody's.
    move: Callable[..., Tensor] = torch.sub
    for batch in batches if _any(params) else ():
        gradient = sgd.gradient(objective, params, batch)
        if isinstance(params, dict):
            params = cast(P, _step(move, params, gradient, sgd.lr, sgd, batch.active))
        else:
            steps = zip(params, gradient, rates or [sgd.lr] * len(params), strict=True)
            moved = [_step(move, part, down, rate, sgd, batch.active) for part, down, rate in steps]
            params = type(params)(*moved)
        move = Tensor.sub_ if project is None else torch.sub
        if project is not None:
            params = project(params)
    return params


def _any(point: Tree | tuple[Any, ...]) -> bool:
    """Whether there is anything to move: a part of a split model may be empty."""
    if isinstance(point, dict):
        return bool(point)
    return any(isinstance(part, Tensor) or _any(part) for part in point)


def _each(change: Callable[[Tensor], Tensor], point: P) -> P:
    """A point with every tensor changed, in the order of its parts and names."""
    if isinstance(point, dict):
        return cast(P, {name: change(value) for name, value in point.items()})
    parts = [change(part) if isinstance(part, Tensor) else _each(change, part) for part in point]
    return type(point)(*parts)


def _step(
    move: Callable[..., Tensor],
    part: Tree | Tensor,
    gradient: Tree | Tensor,
    lr: float,
    sgd: Sgd,
    active: Tensor,
) -> Tree | Tensor:
    if isinstance(part, Tensor):
        return move(part, cast(Tensor, gradient), alpha=lr)
    slopes = cast(Tree, gradient)
    if sgd.weight_decay:
        decay = sgd.weight_decay * active
        slopes = {name: slope + decay * part[name] for name, slope in slopes.items()}
    if sgd.clip:
        # In double, where no square of a float overflows.
        norms = [torch.linalg.vector_norm(one, dtype=torch.float64) for one in slopes.values()]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        shrink = (sgd.clip / norm.clamp(min=1e-30)).clamp(max=1.0)
        slopes = {name: shrink.to(one.dtype) * one for name, one in slopes.items()}
    return {name: move(value, slopes[name], alpha=lr) for name, value in part.items()}
