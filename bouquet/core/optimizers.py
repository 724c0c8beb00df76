"""Local optimizers: the direction of a step by its gradient and by those before it.

The arithmetic is that of ``torch.optim``, and so are the moments' names, but as pure functions of
trees: they can be batched over clients and recorded (:mod:`bouquet.core.replay`).

=============  ==========================================================================
optimizer      what the step size multiplies, of the gradient g (clipped, where that is asked)
=============  ==========================================================================
``sgd``        g
``momentum``   b ← μ b + g
``nesterov``   g + μ b, with b as above
``adam``       m̂ / (√v̂ + ε): m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², m̂ = m / (1 − β₁ᵗ)
``adamw``      the same; its decay is decoupled, and no moment knows of it
=============  ==========================================================================
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.placement import widest
from bouquet.core.trees import Tree

KINDS = ("sgd", "momentum", "nesterov", "adam", "adamw")


@dataclass(frozen=True)
class Optimizer:
    """Which optimizer, and how much of the past it keeps.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    momentum : float
        Momentum, nesterov: μ.
    beta1, beta2, eps : float
        Adam, adamw: β₁, β₂ and ε.
    """

    kind: str = "sgd"
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @property
    def remembers(self) -> bool:
        """Whether it has moments at all."""
        return self.kind != "sgd"

    def start(self, weights: Tree) -> Tree:
        """The moments of weights that have not moved yet; of no weights, none."""
        if not weights or not self.remembers:
            return {}
        if self.kind in ("momentum", "nesterov"):
            return _zeros("momentum_buffer", weights)
        some = next(iter(weights.values()))
        # With an axis: PyTorch's compiler (2.13) loses what is written to a double without one.
        step = torch.zeros(1, dtype=widest(some.device), device=some.device)
        return _zeros("exp_avg", weights) | _zeros("exp_avg_sq", weights) | {"step": step}

    def direction(self, slopes: Tree, moments: Tree, active: Tensor) -> tuple[Tree, Tree]:
        """What to go against, and the moments after it; a step not taken leaves every bit.

        Parameters
        ----------
        slopes : Tree
            The gradient; 0 in a step that only other clients take.
        moments : Tree
            Those of the steps before.
        active : Tensor
            1, or 0 for a step that only other clients take.
        """
        if not moments:
            return slopes, moments
        if self.kind in ("momentum", "nesterov"):
            return self._rolling(slopes, moments, active)
        return self._adaptive(slopes, moments, active)

    def _rolling(self, slopes: Tree, moments: Tree, active: Tensor) -> tuple[Tree, Tree]:
        ahead, after = Tree(), dict(moments)
        for name, slope in slopes.items():
            taken, place = active.to(slope.dtype), f"momentum_buffer/{name}"
            after[place] = moments[place] * (1 - taken * (1 - self.momentum)) + slope
            down = after[place]
            if self.kind == "nesterov":
                down = slope + self.momentum * down
            ahead[name] = taken * down
        return ahead, after

    def _adaptive(self, slopes: Tree, moments: Tree, active: Tensor) -> tuple[Tree, Tree]:
        step = moments["step"] + active.to(moments["step"].dtype)
        # Before a client's first step, 1 keeps the division from 0.
        counted = step.squeeze(0).clamp(min=1)
        first = active.to(step.dtype) / (1 - self.beta1**counted)
        second = (1 - self.beta2**counted).rsqrt()
        ahead, after = Tree(), dict(moments)
        for name, slope in slopes.items():
            taken, mean, square = active.to(slope.dtype), f"exp_avg/{name}", f"exp_avg_sq/{name}"
            after[mean] = torch.lerp(moments[mean], slope, taken * (1 - self.beta1))
            after[square] = torch.lerp(moments[square], slope * slope, taken * (1 - self.beta2))
            size = after[square].sqrt() * second.to(slope.dtype) + self.eps
            ahead[name] = first.to(slope.dtype) * after[mean] / size
        after["step"] = step
        return ahead, after


def _zeros(kind: str, weights: Tree) -> Tree:
    return {f"{kind}/{name}": torch.zeros_like(value) for name, value in weights.items()}


class Memory:
    """What a client's optimizer remembers, by the part of a point that its steps moved.

    A scheme may move a part in several stretches of steps, one going on where the other ended.

    Parameters
    ----------
    optimizer : Optimizer
        Whose memory it is.
    kept : Tree
        What the client kept of it from an earlier round; what was another optimizer's, or another
        part's, is forgotten.
    """

    def __init__(self, optimizer: Optimizer, kept: Tree | None = None) -> None:
        self._optimizer = optimizer
        start = f"{optimizer.kind}/"
        self._kept = {name: v for name, v in (kept or {}).items() if name.startswith(start)}
        self._ends: dict[str, tuple[Tree, Tree]] = {}

    def recall(self, part: str, weights: Tree) -> Tree:
        """The moments that a part goes on with from some weights."""
        if part in self._ends:
            ended, moments = self._ends[part]
            if any(value is not ended.get(name) for name, value in weights.items()):
                raise BadInput(
                    f"optimizer must be 'sgd' for this scheme, not {self._optimizer.kind!r}: in a "
                    f"round it moves two things called {part!r}, whose moments would be mixed up; "
                    "work.descend(..., part='v') gives the other a name of its own."
                )
            return moments
        fresh = self._optimizer.start(weights)
        known = {name: self._kept.get(self._name(part, name)) for name in fresh}
        found = {n: v for n, v in known.items() if v is not None and v.shape == fresh[n].shape}
        return found if found.keys() == fresh.keys() else fresh

    def note(self, part: str, weights: Tree, moments: Tree) -> None:
        """Take down where a part's steps ended, and with which moments."""
        self._ends[part] = weights, moments

    @property
    def tree(self) -> Tree:
        """All of it, for the client to keep."""
        moved = {
            self._name(part, name): value
            for part, (_, moments) in self._ends.items()
            for name, value in moments.items()
        }
        return self._kept | moved

    def _name(self, part: str, moment: str) -> str:
        return f"{self._optimizer.kind}/{part}/{moment}"
