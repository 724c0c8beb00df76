"""The one training loop."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from bouquet.core.lifting import NotReplayable
from bouquet.core.optimizers import Memory, Optimizer
from bouquet.core.replay import Stretch
from bouquet.core.syntax_lock import syntax_lock
from bouquet.core.task import Batch
from bouquet.core.trees import Tree, norm


class Step(Protocol):
    """What a step is taken on: a batch, or several of them."""

    @property
    def active(self) -> Tensor:
        """1, or 0 for a step that only other clients take."""


Parts = tuple[Tree | Tensor, ...]
Moments = tuple[Tree, ...]  # of each part, empty for a single tensor
P = TypeVar("P", bound=Tree | tuple[Any, ...])
S = TypeVar("S", bound=Step)


def slope(objective: Callable[[Parts, S], Tensor], parts: Parts, batch: S) -> Parts:
    """The gradient of an objective in the parts of a point, by plain autograd."""
    leaves: list[Tensor] = []

    def leaf(value: Tensor) -> Tensor:
        leaves.append(value.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad():
        value = objective(_each(leaf, parts), batch)
    found = iter(torch.autograd.grad(value, leaves, materialize_grads=True))
    return _each(lambda _: next(found), parts)


def _each(change: Callable[[Tensor], Tensor], parts: Parts) -> Parts:
    """Parts with every tensor changed, in the order of the parts and names."""
    return tuple(
        change(part) if isinstance(part, Tensor) else {n: change(v) for n, v in part.items()}
        for part in parts
    )


def slope_in_vmap(objective: Callable[[Parts, S], Tensor], parts: Parts, batch: S) -> Parts:
    """The same inside ``torch.func.vmap``, where plain autograd cannot go."""
    return cast(Parts, functional_gradient(objective)(parts, batch))


def functional_gradient(objective: Callable[..., Tensor]) -> Callable[..., Any]:
    """``torch.func.grad``: a gradient that can be batched and differentiated again.

    Its first use imports for more than a second, which a device that trains one client saves.
    """
    with syntax_lock:
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
        clipping and no moment sees (as in AdamW); 0 for none. Decay that is part of the loss is
        the task's.
    gradient : callable
        ``slope``, or ``slope_in_vmap`` for clients that train together.
    recorded : str
        Empty for steps taken as they are; ``replayed`` or ``compiled`` for steps that are recorded
        first, where they can be (:mod:`bouquet.core.replay`).
    optimizer : Optimizer
        What makes the direction of a step of its gradient and those before.
    paced : bool
        Whether the step size falls from step to step, by the pace that each batch tells.
    """

    lr: float
    clip: float = 0.0
    clip_all: bool = False
    decoupled_decay: float = 0.0
    gradient: Callable[..., Any] = slope
    recorded: str = ""
    optimizer: Optimizer = field(default_factory=Optimizer)
    paced: bool = False


def descend(
    loss: Callable[[P, S], Tensor],
    params: P,
    batches: Sequence[S],
    sgd: Sgd,
    *,
    moving: Sequence[str] | None = None,
    rates: Mapping[str, float] | None = None,
    project: Callable[[P], P] | None = None,
    part: str = "w",
    memory: Memory | None = None,
) -> P:
    """Take one gradient step per batch, all parts moving from the same point.

    Parameters
    ----------
    loss : callable
        The objective; autograd differentiates it in all that moves at once.
    params : Tree, or a record of trees and tensors
        Where to start; left untouched. A record's trees move side by side, each decayed at
        its own rate; single tensors are neither clipped nor decayed, and take plain steps
        whatever the optimizer.
    batches : sequence of Batch, or of anything that knows whether it is active
        One a step.
    sgd : Sgd
        Step size, clipping, optimizer, decay.
    moving : sequence of str, optional
        The fields of a record that move; without, all do.
    rates : mapping of str to float, optional
        Step sizes of single fields, instead of ``sgd.lr``.
    project : callable, optional
        Applied after every step, for example to stay in [0, 1].
    part : str
        What a tree that moves alone is called; a record's parts have the names of its fields.
    memory : Memory, optional
        What the optimizer remembers of steps before these; without, nothing.

    Returns
    -------
    Tree or record
        The end point, of the same type as ``params``.
    """
    if isinstance(params, dict):
        names: tuple[str, ...] = (part,)
    else:
        names = params._fields if moving is None else tuple(moving)  # type: ignore[attr-defined]
    speeds = [(rates or {}).get(name, sgd.lr) for name in names]

    def parts_of(point: P) -> Parts:
        return (point,) if isinstance(point, dict) else tuple(getattr(point, n) for n in names)

    def whole(parts: Parts) -> P:
        return _whole(params, names, parts, {})

    # An inactive step has gradient 0 whatever the objective adds to the loss, so a
    # client that takes fewer steps than its neighbours stays where it is.
    def objective(parts: Parts, batch: S) -> Tensor:
        return batch.active * loss(whole(parts), batch)

    parts = parts_of(params)
    if not batches or not any(isinstance(part, Tensor) or part for part in parts):
        return params
    memory = memory or Memory(sgd.optimizer)
    remembers = sgd.optimizer.remembers
    moments = tuple(
        memory.recall(name, part) if remembers and isinstance(part, dict) else {}
        for name, part in zip(names, parts, strict=True)
    )

    def ended(parts: Parts, moments: Moments) -> P:
        for name, part, own in zip(names, parts, moments, strict=True):
            if remembers and isinstance(part, dict):
                memory.note(name, part, own)
        return whole(parts)

    if sgd.recorded:
        with suppress(NotReplayable):
            return ended(
                *_replayed(loss, params, parts, moments, batches, sgd, speeds, project, names)
            )
    # The first step leaves the caller's tensors alone; the next ones may overwrite ours,
    # which spares a new copy of the weights in every step. What a projection returns may
    # be anybody's.
    move: Callable[..., Tensor] = torch.sub
    for batch in batches:
        slopes = sgd.gradient(objective, parts, batch)
        ahead, moments = _ahead(slopes, parts, moments, sgd, batch)
        parts = tuple(
            _moved(move, part, down, rate)
            for part, down, rate in zip(parts, ahead, speeds, strict=True)
        )
        move = Tensor.sub_ if project is None else torch.sub
        if project is not None:
            parts = parts_of(project(whole(parts)))
    return ended(parts, moments)


def _whole(params: P, names: Sequence[str], parts: Parts, held: Mapping[str, Any]) -> P:
    """A point of the kind of ``params`` with other parts, and other held fields where given."""
    if isinstance(params, dict):
        return cast(P, parts[0])
    changed = {**held, **dict(zip(names, parts, strict=True))}
    return cast(P, params._replace(**changed))  # type: ignore[attr-defined]


def _replayed(
    loss: Callable[[P, S], Tensor],
    params: P,
    parts: Parts,
    moments: Moments,
    batches: Sequence[S],
    sgd: Sgd,
    speeds: Sequence[float],
    project: Callable[[P], P] | None,
    names: Sequence[str],
) -> tuple[Parts, Moments]:
    """The same steps as :func:`descend` takes, recorded and replayed."""
    held = {} if isinstance(params, dict) else params._asdict()  # type: ignore[attr-defined]
    held = {name: value for name, value in held.items() if name not in names}

    def whole(parts: Parts, held: Mapping[str, Any]) -> P:
        return _whole(params, names, parts, held)

    def step(moving: Sequence[Tensor], held: Any, batch: S) -> list[Tensor]:
        loss, rest, _ = held

        def objective(parts: Parts, batch: S) -> Tensor:
            return batch.active * cast(Tensor, loss(whole(parts, rest), batch))

        now, own = filled(moving)
        ahead, after = _ahead(slope_in_vmap(objective, now, batch), now, own, sgd, batch)
        return _flat((*ahead, *after))

    def projected(moving: Sequence[Tensor], held: Any) -> list[Tensor]:
        _, rest, project = held
        now, own = filled(moving)
        point = project(whole(now, rest))
        ends = (point,) if isinstance(point, dict) else [getattr(point, n) for n in names]
        return _flat((*ends, *own))

    def filled(moving: Sequence[Tensor]) -> tuple[Parts, Moments]:
        found = _filled((*parts, *moments), moving)
        return found[: len(parts)], cast(Moments, found[len(parts) :])

    moving = _flat((*parts, *moments))
    if any(tensor.requires_grad for tensor in moving):
        raise NotReplayable("somebody differentiates through the steps")
    rates = [
        speed
        for part, speed in zip(parts, speeds, strict=True)
        for _ in ([part] if isinstance(part, Tensor) else part)
    ]
    shape = [() if isinstance(part, Tensor) else tuple(part) for part in parts]
    rules = (sgd.clip, sgd.clip_all, sgd.decoupled_decay, sgd.optimizer, sgd.paced)
    key = (type(params), tuple(names), tuple(shape), *rules)
    stretch = Stretch(
        step,
        projected if project is not None else None,
        moving,
        tuple(rates),
        (loss, held, project),
        batches,
        key,
        sgd.recorded == "compiled",
    )
    return filled(stretch.taken())


def _flat(parts: Iterable[Tree | Tensor]) -> list[Tensor]:
    return [
        tensor
        for part in parts
        for tensor in ([part] if isinstance(part, Tensor) else part.values())
    ]


def _filled(parts: Parts, tensors: Sequence[Tensor]) -> Parts:
    """Parts with other tensors."""
    left = iter(tensors)
    return _each(lambda _: next(left), parts)


def _ahead(
    gradient: Parts, parts: Parts, moments: Moments, sgd: Sgd, batch: Step
) -> tuple[Parts, Moments]:
    """What the step sizes multiply, and the moments after it; in the order of PyTorch's loops.

    The gradient is clipped, the optimizer makes a direction of it, decay is added beside it, and
    all of it goes at the step's pace. Single tensors have their slope and the pace alone.
    """
    ahead, after = list[Tree | Tensor](), list[Tree]()
    for slope, part, own in zip(_clipped(gradient, sgd), parts, moments, strict=True):
        if isinstance(part, Tensor):
            ahead.append(slope)
            after.append(own)
            continue
        direction, own_after = sgd.optimizer.direction(cast(Tree, slope), own, batch.active)
        ahead.append(_decayed(direction, part, sgd, batch.active))
        after.append(own_after)
    if sgd.paced:
        pace = _pace(batch)
        return _each(lambda value: pace.to(value.dtype) * value, tuple(ahead)), tuple(after)
    return tuple(ahead), tuple(after)


def _pace(step: Any) -> Tensor:
    """A batch's own; of a record of several batches the first one's."""
    return step.pace if isinstance(step, Batch) else _pace(step[0])


def _clipped(gradient: Parts, sgd: Sgd) -> Parts:
    """A gradient whose trees are within the bound, together or each on its own."""
    if not sgd.clip:
        return gradient
    sizes = [norm(part) if isinstance(part, dict) else None for part in gradient]
    if sgd.clip_all:
        known = [size for size in sizes if size is not None]
        # An empty tree's size, which is 0, is on no device of its own.
        there = max((size.device for size in known), key=lambda one: one.type != "cpu")
        together = torch.linalg.vector_norm(torch.stack([size.to(there) for size in known]))
        sizes = [None if size is None else together for size in sizes]
    return tuple(
        part if isinstance(part, Tensor) or size is None else _shortened(part, size, sgd.clip)
        for part, size in zip(gradient, sizes, strict=True)
    )


def _shortened(tree: Tree, size: Tensor, bound: float) -> Tree:
    shrink = (bound / size.clamp(min=1e-30)).clamp(max=1.0)
    return {name: shrink.to(value.dtype) * value for name, value in tree.items()}


def _moved(
    move: Callable[..., Tensor], part: Tree | Tensor, ahead: Tree | Tensor, lr: float
) -> Tree | Tensor:
    if isinstance(part, Tensor):
        return move(part, cast(Tensor, ahead), alpha=lr)
    down = cast(Tree, ahead)
    return {name: move(value, down[name], alpha=lr) for name, value in part.items()}


def _decayed(slopes: Tree, part: Tree, sgd: Sgd, active: Tensor) -> Tree:
    if not sgd.decoupled_decay:
        return slopes
    decay = sgd.decoupled_decay * active
    return {name: slope + decay * part[name] for name, slope in slopes.items()}
