"""Personalized Local SGD: a personal correction added to the shared model.

*Personalization mitigates the perils of local SGD for heterogeneous distributed
learning*, algorithm 1, Option I: the client predicts with w + θ.

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

One gradient g = ∇f(w + θ; z) moves both: θ by −α η g, w by −η g.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from strategies.core.config import key
from strategies.core.descent import descend
from strategies.core.scheme import Model, Scheme, Work, step_to_mean
from strategies.core.task import Task
from strategies.core.trees import Tree, add, norm


@dataclass(frozen=True)
class Config:
    """Personalized Local SGD's keys."""

    alpha: float = key(
        1.0,
        "speed of the personal part, as a multiple of the shared one's",
        low=0.0,
        degenerate="0 with beta 1 is FedAvg",
    )
    beta: float = key(
        1.0, "how far the server moves to the mean", low=0.0, degenerate="0 is training alone"
    )


class Personal(NamedTuple):
    """What stays on the device."""

    theta: Tree


class Sum(NamedTuple):
    """What a local step moves."""

    w: Tree
    theta: Tree


def init_personal(config: Config, task: Task) -> Personal:
    """θ starts at 0."""
    return Personal({name: torch.zeros_like(value) for name, value in task.initial.items()})


def local_update(work: Work[Config], payload: Model, personal: Personal) -> tuple[Model, Personal]:
    """K joint steps on f(w + θ)."""
    lr = work.sgd.lr
    w, theta = descend(
        lambda p, batch: work.task.loss(add(p.w, p.theta), batch),
        Sum(payload.w, personal.theta),
        work.batches,
        work.sgd,
        rates=(lr, work.config.alpha * lr),
    )
    return Model(w), Personal(theta)


def predictor(work: Work[Config], payload: Model, personal: Personal) -> Tree:
    """w + θ."""
    return add(payload.w, personal.theta)


def diagnostics(personal: Personal, shared: Tree) -> dict[str, float]:
    """How far the client is from the shared model: the size of θ."""
    size = norm(personal.theta)
    return {"personal_norm": size, "drift": size}


SCHEME = Scheme(
    name="plsgd",
    title="Local SGD with personalization",
    paper="Personalization mitigates the perils of local SGD, algorithm 1, Option I",
    shares="w_i, the client's copy of the shared weights after its local steps",
    keeps="theta_i, its correction to the shared weights",
    config=Config,
    personal=Personal,
    init_personal=init_personal,
    local_update=local_update,
    predictor=predictor,
    aggregate=step_to_mean,
    diagnostics=diagnostics,
)
