"""APFL: every client mixes a model of its own with the shared one.

Deng, Kamani and Mahdavi (2020), *Adaptive personalized federated learning*,
algorithm 1 (Local Descent APFL) and equation 10 (adaptive α).

====================  ====================================================
paper                 here
====================  ====================================================
w_i                   ``payload.w``, then ``upload.w``
v_i                   ``personal.v``, starts at the initial w
α_i                   ``personal.alpha``, starts at ``apfl.alpha``
v̄_i                   ``mix(v, w, alpha)`` = α v + (1 − α) w
η                     ``sgd.lr``; for α ``apfl.alpha-lr`` where set
====================  ====================================================

A local step is one joint gradient step on f(w; ξ) + f(α v + (1 − α) [w]; ξ) with
[w] held constant: all parts move from the values before the step, on the same
batch, and the chain rule gives v the factor α and α the slope ⟨v − w, ∇f(v̄)⟩.
α moves once a round, in the first local step, or in every step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.core.config import key
from strategies.core.descent import descend
from strategies.core.scheme import Model, Scheme, Work
from strategies.core.task import Batch, Task
from strategies.core.trees import Tree, detach, distance, mix, norm


@dataclass(frozen=True)
class Config:
    """APFL's keys."""

    alpha: float = key(
        0.5,
        "weight of the own model in the mixture: fixed, or where it starts",
        low=0.0,
        high=1.0,
        degenerate="0 (fixed) is FedAvg, 1 (fixed) is Local",
    )
    adaptive: bool = key(True, "learn alpha on the device", degenerate="false keeps alpha fixed")
    alpha_lr: float = key(0.0, "step size of alpha; 0 = lr", low=0.0)
    alpha_update: str = key("round", "how often alpha moves", choices=("round", "step"))


class Personal(NamedTuple):
    """What stays on the device."""

    v: Tree
    alpha: Tensor


class Mixture(NamedTuple):
    """Everything a local step can move."""

    w: Tree
    v: Tree
    alpha: Tensor


class Models(NamedTuple):
    """What a local step moves while α rests."""

    w: Tree
    v: Tree


def init_personal(config: Config, task: Task) -> Personal:
    """V starts at the initial w."""
    dtype = next(iter(task.initial.values())).dtype
    return Personal(task.initial, torch.tensor(config.alpha, dtype=dtype))


def local_update(work: Work[Config], payload: Model, personal: Personal) -> tuple[Model, Personal]:
    """The steps in which α moves, then the others."""
    config, task, batches = work.config, work.task, work.batches
    learning = {"round": 1, "step": len(batches)}[config.alpha_update] if config.adaptive else 0

    def objective(w: Tree, v: Tree, alpha: Tensor, batch: Batch) -> Tensor:
        return task.loss(w, batch) + task.loss(mix(v, detach(w), alpha), batch)

    w, v, alpha = descend(
        lambda p, batch: objective(p.w, p.v, p.alpha, batch),
        Mixture(payload.w, personal.v, personal.alpha),
        batches[:learning],
        work.sgd,
        rates=(work.sgd.lr, work.sgd.lr, config.alpha_lr or work.sgd.lr),
        project=lambda p: p._replace(alpha=p.alpha.clamp(0.0, 1.0)),
    )
    w, v = descend(
        lambda p, batch: objective(p.w, p.v, alpha, batch),
        Models(w, v),
        batches[learning:],
        work.sgd,
    )
    return Model(w), Personal(v, alpha)


def predictor(work: Work[Config], payload: Model, personal: Personal) -> Tree:
    """v̄ = α v + (1 − α) w with the newest w."""
    return mix(personal.v, payload.w, personal.alpha)


def diagnostics(personal: Personal, shared: Tree) -> dict[str, float]:
    """α, the size of the own model, and its distance from the shared one."""
    return {
        "alpha": float(personal.alpha),
        "personal_norm": norm(personal.v),
        "drift": distance(personal.v, shared),
    }


SCHEME = Scheme(
    name="apfl",
    title="Adaptive personalized federated learning",
    paper="Deng, Kamani and Mahdavi 2020, algorithm 1 and equation 10",
    shares="w_i, the client's copy of the shared weights after its local steps",
    keeps="v_i, its own weights, and alpha_i, their share in the mixture",
    config=Config,
    personal=Personal,
    init_personal=init_personal,
    local_update=local_update,
    predictor=predictor,
    diagnostics=diagnostics,
)
