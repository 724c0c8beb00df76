"""Personalized Local SGD: a personal correction added to the shared model.

*Personalization mitigates the perils of local SGD for heterogeneous distributed
learning*, algorithm 1.

====================  ==================================================
paper                 here
====================  ==================================================
w_t, w_t^m            ``payload.w``, then ``upload.w``
θ_t^m                 ``personal.theta``, starts at 0
η_t                   ``sgd.lr``
K                     local steps
α                     ``plsgd.alpha``: θ moves α times as fast as w
β                     ``plsgd.beta``, at the server
====================  ==================================================

One gradient g = ∇f(w + θ; z) moves both: θ by −α η g, w by −η g. ``plsgd.output`` says what a
client predicts with:

- ``last``, Option I: w + θ.
- ``mean-shared``, Option II: the averages over t of w_t (the clients' mean) and of θ_t^m.
- ``mean-own``, Option III: the average over t of w_t^m + θ_t^m.

The averages run over t = 0, …, T − 1, the points whose gradients were taken, as in the proofs
(appendices B.4 and B.5). A client that sits rounds out averages over the steps it took.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from bouquet.core.config import key
from bouquet.core.scheme import AnyScheme, Averaging, Model, Round, Work
from bouquet.core.task import Task
from bouquet.core.trees import Tree, add, norm, toward, without_statistics
from bouquet.strategies.averaged import Average, Averaged


class Personal(NamedTuple):
    """What stays on the device."""

    theta: Tree


class Sum(NamedTuple):
    """What a local step moves."""

    w: Tree
    theta: Tree


def zeros(like: Tree) -> Tree:
    """Where θ starts; it corrects weights, not running statistics."""
    return {name: torch.zeros_like(value) for name, value in without_statistics(like).items()}


@dataclass(frozen=True)
class PLSGD(Averaging[Personal]):
    """Local SGD with personalization."""

    name = "plsgd"
    title = "Local SGD with personalization"
    paper = "Personalization mitigates the perils of local SGD, algorithm 1"
    shares = "w_i, the client's copy of the shared weights after its local steps"
    keeps = "theta_i, its correction to the shared weights"
    derivable = "theta_i, always: it moves with w_i, alpha times as far, so the moves add up to it"
    plain = "in which one gradient moves w and theta, alpha times as far"
    version = 3

    alpha: float = key(
        1.0,
        "speed of the personal part, as a multiple of the shared one's",
        low=0.0,
        degenerate="0 with beta 1 is FedAvg",
        step=True,
    )
    beta: float = key(
        1.0, "how far the server moves to the mean", low=0.0, degenerate="0 is training alone"
    )
    output: str = key(
        "last",
        "predict with the last models (Option I) or with averages over all steps (II, III)",
        choices=("last", "mean-shared", "mean-own"),
    )

    def init_personal(self, task: Task, examples: int) -> Personal:
        """θ starts at 0."""
        return Personal(zeros(task.initial))

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """K joint steps on f(w + θ)."""
        w, theta = work.descend(
            lambda p, batch: work.task.loss(add(p.w, p.theta), batch),
            Sum(payload.w, personal.theta),
            work.batches,
            rates={"theta": self.alpha * work.sgd.lr},
        )
        return Model(w), Personal(theta)

    def aggregate(self, server: Model, uploads: Round[Model]) -> Model:
        """w ← w + β mean(w_m − w), exactly the mean at β = 1."""
        return Model(toward(server.w, uploads.mean.w, self.beta))

    def predictor(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """w + θ."""
        return add(payload.w, personal.theta)

    def begins_at(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """A client's loss is f_m(w + θ_m), under every option."""
        return add(payload.w, personal.theta)

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """w stays as it is, and θ takes its steps from 0."""
        still = Sum(shared, zeros(shared))
        moved = work.descend(
            lambda p, batch: work.task.loss(add(p.w, p.theta), batch), still, work.batches,
            hold=("w",), rates={"theta": self.alpha * work.sgd.lr},
        )  # fmt: skip
        return add(shared, moved.theta)

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """How far the client is from the shared model: the size of θ."""
        size = norm(personal.theta)
        return {"personal_norm": size, "drift": size}

    def assembled(self) -> AnyScheme:
        """With the averages of Option II or III where one is asked for."""
        return self if self.output == "last" else Averaged(self, self.average())

    def average(self) -> Average[Sum, Personal]:
        """Averages over the points before each step, whose gradients were taken."""
        if self.output == "mean-own":
            return Average(
                own=lambda before, after: add(before.w, before.theta),
                start=lambda task: task.initial,
                predict=lambda shared, own, personal: own,
            )
        return Average(
            shared=lambda before, after: before.w,
            own=lambda before, after: before.theta,
            start=lambda task: zeros(task.initial),
            predict=lambda shared, own, personal: add(shared, own),
        )
