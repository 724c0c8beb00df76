"""APFL: every client mixes a model of its own with the shared one.

Deng, Kamani and Mahdavi (2020), *Adaptive personalized federated learning*,
algorithm 1 (Local Descent APFL), equation 10 (adaptive α) and equation 17 (newcomers).

====================  ====================================================
paper                 here
====================  ====================================================
w_i                   ``payload.w``, then ``upload.w``
v_i                   ``personal.v``, starts at the initial w
α_i                   ``personal.alpha``, starts at ``apfl.alpha``
v̄_i                   ``mix(v, w, alpha)`` = α v + (1 − α) w
η                     ``sgd.lr``; for α ``apfl.alpha-lr`` where set
p_t = (t + a)²        ``weight_of_step``, with a = ``apfl.output-offset``
v̂_i, ŵ                ``personal.trail`` and ``payload.trail``, averages over t
====================  ====================================================

A local step is one joint gradient step on f(w; ξ) + f(α v + (1 − α) [w]; ξ) with
[w] held constant: all parts move from the values before the step, on the same
batch, and the chain rule gives v the factor α and α the slope ⟨v − w, ∇f(v̄)⟩.
α moves once a round, in the first local step, or in every step.

With ``apfl.output = average`` a client predicts with the output of theorem 3,
α_i v̂_i + (1 − α_i) ŵ, where v̂_i and ŵ average v_i and the mean of the round's w_j over all
steps t with the weights p_t. A client that sits rounds out averages over the steps it took.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.core import averages
from strategies.core.averages import Trail, TrailServer, onward
from strategies.core.config import key
from strategies.core.descent import descend
from strategies.core.errors import BadInput
from strategies.core.scheme import Federation, Round, Scheme, Work
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
    alpha_lr: float = key(0.0, "step size of alpha; 0 = lr", low=0.0, step=True)
    alpha_update: str = key("round", "how often alpha moves", choices=("round", "step"))
    output: str = key(
        "last",
        "predict with the last models, or with their average over all steps",
        choices=("last", "average"),
    )
    output_offset: float = key(0.0, "a in the average's weights (t + a)^2", low=0.0)

    @property
    def averages(self) -> bool:
        """Whether anything has to be averaged."""
        return self.output == "average"


class Personal(NamedTuple):
    """What stays on the device: v_i, α_i, and the average of v_i with its weight."""

    v: Tree
    alpha: Tensor
    trail: Tree
    weight: Tensor


class Mixture(NamedTuple):
    """Everything a local step can move."""

    w: Tree
    v: Tree
    alpha: Tensor


class Models(NamedTuple):
    """What a local step moves while α rests."""

    w: Tree
    v: Tree


def init_personal(config: Config, task: Task, examples: int) -> Personal:
    """V starts at the initial w."""
    dtype = next(iter(task.initial.values())).dtype
    return Personal(
        task.initial,
        torch.tensor(config.alpha, dtype=dtype),
        task.initial if config.averages else {},
        torch.zeros((), dtype=torch.float64),
    )


def init_server(config: Config, task: Task) -> TrailServer:
    """The server starts at the initial w."""
    return averages.begin(task.initial, config.averages)


def weight_of_step(config: Config, t: int) -> float:
    """p_t = (t + a)²."""
    return (t + config.output_offset) ** 2


def local_update(work: Work[Config], payload: Trail, personal: Personal) -> tuple[Trail, Personal]:
    """The steps in which α moves, then the others."""
    config, batches = work.config, work.batches
    learning = {"round": 1, "step": len(batches)}[config.alpha_update] if config.adaptive else 0
    point = Mixture(payload.w, personal.v, personal.alpha)
    if not config.averages:
        point = stretch(work, point, batches[:learning], learning=True)
        point = stretch(work, point, batches[learning:], learning=False)
        return Trail(point.w, {}), Personal(point.v, point.alpha, {}, personal.weight)
    w_trail, v_trail, weight, taken = payload.w, personal.trail, personal.weight, 0.0
    for step, batch in enumerate(batches):
        point = stretch(work, point, [batch], learning=step < learning)
        p = weight_of_step(config, (work.round - 1) * work.steps + step + 1)
        taken, weight = taken + p, weight + p
        w_trail = onward(w_trail, point.w, p / taken)
        v_trail = onward(v_trail, point.v, p / weight)
    return Trail(point.w, w_trail), Personal(point.v, point.alpha, v_trail, weight)


def stretch(
    work: Work[Config], point: Mixture, batches: Sequence[Batch], learning: bool
) -> Mixture:
    """Joint steps, in which α moves or rests."""
    task, lr = work.task, work.sgd.lr

    def objective(w: Tree, v: Tree, alpha: Tensor, batch: Batch) -> Tensor:
        return task.loss(w, batch) + task.loss(mix(v, detach(w), alpha), batch)

    if learning:
        return descend(
            lambda p, batch: objective(p.w, p.v, p.alpha, batch),
            point,
            batches,
            work.sgd,
            rates=(lr, lr, work.config.alpha_lr or lr),
            project=lambda p: p._replace(alpha=p.alpha.clamp(0.0, 1.0)),
        )
    models = descend(
        lambda p, batch: objective(p.w, p.v, point.alpha, batch),
        Models(point.w, point.v),
        batches,
        work.sgd,
    )
    return Mixture(models.w, models.v, point.alpha)


def aggregate(config: Config, server: TrailServer, uploads: Round) -> TrailServer:
    """The mean of the w_j, and of their averages with the round's weight Σ p_t."""
    steps = uploads.federation.steps
    times = range((uploads.number - 1) * steps + 1, uploads.number * steps + 1)
    weight = sum(weight_of_step(config, t) for t in times)
    return averages.take_trail(server, uploads.mean.w, uploads, weight)


def predictor(work: Work[Config], payload: Trail, personal: Personal) -> Tree:
    """v̄ = α v + (1 − α) w with the newest w, or the averages in their places."""
    if work.config.averages:
        return mix(personal.trail, payload.trail, personal.alpha)
    return mix(personal.v, payload.w, personal.alpha)


def shared(config: Config, task: Task, payload: Trail) -> Tree:
    """w, or its average."""
    return payload.trail if config.averages else payload.w


def newcomer(work: Work[Config], payload: Trail, shared: Tree) -> Tree:
    """Equation 17: v starts at the shared model and takes steps with w and α fixed."""
    alpha = work.config.alpha
    v = descend(
        lambda v, batch: work.task.loss(mix(v, shared, alpha), batch),
        shared,
        work.batches,
        work.sgd,
    )
    return mix(v, shared, alpha)


def advise(config: Config, federation: Federation) -> str:
    """The average counts steps."""
    if config.averages and not federation.steps:
        raise BadInput(
            "apfl.output must be 'last' with local-epochs, not 'average': the average's weights "
            "count local steps."
        )
    return ""


def diagnostics(personal: Personal, shared: Tree) -> Tree:
    """α, the size of the own model, and its distance from the shared one."""
    return {
        "alpha": personal.alpha,
        "personal_norm": norm(personal.v),
        "drift": distance(personal.v, shared),
    }


SCHEME = Scheme(
    name="apfl",
    title="Adaptive personalized federated learning",
    paper="Deng, Kamani and Mahdavi 2020, algorithm 1, equations 10 and 17",
    shares="w_i, the client's copy of the shared weights after its local steps",
    keeps="v_i, its own weights, and alpha_i, their share in the mixture",
    config=Config,
    version=2,
    personal=Personal,
    payload=Trail,
    upload=Trail,
    server=TrailServer,
    init_personal=init_personal,
    init_server=init_server,
    downlink=averages.send_trail,
    upload_like=averages.send_trail,
    local_update=local_update,
    aggregate=aggregate,
    predictor=predictor,
    shared=shared,
    newcomer=newcomer,
    advise=advise,
    diagnostics=diagnostics,
)
