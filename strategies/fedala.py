"""FedALA: a client learns, weight by weight, how much of the shared model to take in.

Zhang, Hua, Wang, Song, Xue, Ma and Guan (2023), *FedALA: adaptive local aggregation for
personalized federated learning*, algorithm 1.

====================  ==========================================================
paper                 here
====================  ==========================================================
Θ^{t−1}               ``payload.w``
Θ_i^{t−1}             ``personal.v``: its own last weights, of the p higher layers
W_i^p                 ``personal.share``, within [0, 1], starts at 1
Θ̂_i^t                 ``blended(w, v, share)`` = Θ_i + (Θ − Θ_i) ⊙ W
p                     ``fedala.split``, the layers that are blended
s                     ``fedala.share``, the part of its data a client learns W on
η                     ``fedala.eta``, the step of W
α                     ``sgd.lr``
k_i / Σ k_j           the uploads' weights (``examples``)
====================  ==========================================================

A round begins with the blend: the lower layers are those received, the higher ones lie between the
client's own last weights and those received, where W says. W takes gradient steps on the loss of
the blend on a random s of the client's data, clipped to [0, 1], and ∇_W = ∇_Θ̂ ⊙ (Θ − Θ_i) is the
chain rule's. The first time it does so until it converges, later for one pass. Then the client
takes its local steps from the blend and sends all weights. A client predicts with the blend of the
newest shared model, the algorithm's output, for which W takes its pass, too.

Converged is what the authors' program takes for it: the loss on that part of the data deviates over
the last ten passes by less than ``fedala.threshold``; after 100 passes it is given up. As long as
a client's own weights are those received, as in the first round, there is nothing to weigh and W
stays. W's steps are plain: no clipping and no optimizer but the algorithm's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import pstdev
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.config import key
from bouquet.core.descent import Sgd
from bouquet.core.scheme import Averaging, Model, Work
from bouquet.core.task import Task
from bouquet.core.trees import Tree, norm

# Passes over which the loss must be steady, and how many there are at most.
WINDOW, MOST_PASSES = 10, 100


class Personal(NamedTuple):
    """What stays on the device; v is what it sent last, of the higher layers."""

    v: Tree
    share: Tree
    begun: Tensor


class Blend(NamedTuple):
    """What is blended, and by which weights."""

    w: Tree
    v: Tree
    share: Tree


def blended(parts: Blend) -> Tree:
    """Θ̂ = Θ_i + (Θ − Θ_i) ⊙ W in the higher layers, Θ in the others; exact at 0 and 1."""
    w, v, share = parts
    return {**w, **{name: torch.lerp(v[name], w[name], share[name]) for name in share}}


def clipped(parts: Blend) -> Blend:
    """Weights within [0, 1]."""
    return parts._replace(share={n: value.clamp(0.0, 1.0) for n, value in parts.share.items()})


@dataclass(frozen=True)
class FedALA(Averaging[Personal]):
    """Adaptive local aggregation."""

    name = "fedala"
    title = "Adaptive local aggregation"
    paper = "Zhang et al. 2023, algorithm 1"
    shares = "w_i, the client's weights after its local steps"
    keeps = "W_i, how much of each shared weight it takes in, and the last w_i it sent"
    derivable = "the last w_i, which it sent; not W_i"
    weights = "examples"
    alone = True  # how many passes W takes depends on the client
    sent = ("v",)

    split: str = key(
        "output",
        "the layers that are blended, as in personal.split; the others are taken as received",
        degenerate="'none' is FedAvg",
    )
    eta: float = key(
        1.0, "step size of the blending weights", low=0.0, degenerate="0 is FedAvg", step=True
    )
    share: float = key(
        0.8, "part of its data a client learns them on", low=0.0, high=1.0, open_low=True
    )
    threshold: float = key(
        0.1, "the first time, until the loss deviates by less over ten passes", low=0.0
    )

    def personal_part(self, split: str) -> str:
        """The higher layers."""
        return self.split

    def looks(self) -> float:
        """At the part of its data that W learns on."""
        return self.share

    def init_personal(self, task: Task, examples: int) -> Personal:
        """A client's own model starts at the initial weights, W at 1."""
        v = {name: task.initial[name] for name in sorted(task.personal)}
        ones = {name: torch.ones_like(value) for name, value in v.items()}
        return Personal(v, ones, torch.zeros(()))

    def blend(self, work: Work, payload: Model, personal: Personal) -> tuple[Blend, Tensor]:
        """The blend with the W learned for it, and whether there has been any learning."""
        v, share, begun = personal
        parts = Blend(payload.w, v, share)
        if all(torch.equal(value, payload.w[name]) for name, value in v.items()):
            return parts, begun
        parts = self.learned(work, parts)
        losses = [float(work.loss_on_data(blended(parts)))] if not begun else []
        while losses and not self.converged(losses):
            parts = self.learned(work, parts)
            losses.append(float(work.loss_on_data(blended(parts))))
        return parts, torch.ones_like(begun)

    def learned(self, work: Work, parts: Blend) -> Blend:
        """W after a pass over the data it learns on."""
        plain = replace(work, sgd=Sgd(self.eta, gradient=work.sgd.gradient), watch=None)
        return plain.descend(
            lambda p, batch: work.task.loss(blended(p), batch), parts, work.data,
            hold=("w", "v"), project=clipped,
        )  # fmt: skip

    def converged(self, losses: Sequence[float]) -> bool:
        """Whether the loss is steady, or will not become so."""
        steady = len(losses) >= WINDOW and pstdev(losses[-WINDOW:]) < self.threshold
        return steady or len(losses) >= MOST_PASSES

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """The blend, then local steps from it."""
        parts, begun = self.blend(work, payload, personal)
        w = work.descend(work.task.loss, blended(parts), work.batches)
        return Model(w), Personal({name: w[name] for name in personal.v}, parts.share, begun)

    def predictor(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """The blend of the newest shared model."""
        return blended(self.blend(work, payload, personal)[0])

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """The mean of W, and the size of the client's own weights that it blends in."""
        entries = torch.cat(
            [value.flatten() for value in personal.share.values()] or [torch.ones(1)]
        )
        return {"taken_in": entries.double().mean(), "personal_norm": norm(personal.v)}
