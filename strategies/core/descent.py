"""The one training loop."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from strategies.core.parsing import parsing
from strategies.core.trees import Tree, norm


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
    clip_all : bool
        Whether that is the norm over all parts of a tuple, not of each.
    decoupled_decay : float
        Strength λ of a pull towards 0 beside the gradient, w ← w − η g − η λ w, which no
        clipping sees (as in AdamW); 0 for none. Decay that is part of the loss is the task's.
    gradient : callable
        ``slope``, or ``slope_in_vmap`` for clients that train together.
    """

    lr: float
    clip: float = 0.0
    clip_all: bool = False
    decoupled_decay: float = 0.0
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
        Where to start; left untouched. A tuple's trees move side by side, each decayed at
        its own rate; single tensors are neither clipped nor decayed.
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
        gradient = _clipped(sgd.gradient(objective, params, batch), sgd)
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


def _clipped(gradient: P, sgd: Sgd) -> P:
    """A gradient whose trees are within the bound, together or each on its own."""
    if not sgd.clip:
        return gradient
    if isinstance(gradient, dict):
        return cast(P, _shortened(gradient, norm(gradient), sgd.clip))
    trees = {place: part for place, part in enumerate(gradient) if isinstance(part, dict)}
    sizes = {place: norm(tree) for place, tree in trees.items()}
    if sgd.clip_all:
        sizes = dict.fromkeys(sizes, torch.linalg.vector_norm(torch.stack([*sizes.values()])))
    parts = [
        _shortened(part, sizes[place], sgd.clip) if place in trees else part
        for place, part in enumerate(gradient)
    ]
    return type(gradient)(*parts)


def _shortened(tree: Tree, size: Tensor, bound: float) -> Tree:
    shrink = (bound / size.clamp(min=1e-30)).clamp(max=1.0)
    return {name: shrink.to(value.dtype) * value for name, value in tree.items()}


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
    if sgd.decoupled_decay:
        decay = sgd.decoupled_decay * active
        slopes = {name: slope + decay * part[name] for name, slope in slopes.items()}
    return {name: move(value, slopes[name], alpha=lr) for name, value in part.items()}
