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

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.core import averages
from strategies.core.averages import Trail, TrailServer, onward
from strategies.core.config import key
from strategies.core.descent import descend
from strategies.core.scheme import Round, Scheme, Work
from strategies.core.task import Task
from strategies.core.trees import Tree, add, mix, norm


@dataclass(frozen=True)
class Config:
    """Personalized Local SGD's keys."""

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


class Personal(NamedTuple):
    """What stays on the device: θ, and the average an output wants with its weight."""

    theta: Tree
    trail: Tree
    weight: Tensor


class Sum(NamedTuple):
    """What a local step moves."""

    w: Tree
    theta: Tree


def init_personal(config: Config, task: Task, examples: int) -> Personal:
    """θ starts at 0."""
    theta = {name: torch.zeros_like(value) for name, value in task.initial.items()}
    return Personal(
        theta,
        {"last": {}, "mean-shared": theta, "mean-own": task.initial}[config.output],
        torch.zeros((), dtype=torch.float64),
    )


def init_server(config: Config, task: Task) -> TrailServer:
    """w starts at the initial weights."""
    return averages.begin(task.initial, config.output == "mean-shared")


def local_update(work: Work[Config], payload: Trail, personal: Personal) -> tuple[Trail, Personal]:
    """K joint steps on f(w + θ)."""
    output = work.config.output
    point = Sum(payload.w, personal.theta)
    if output == "last":
        w, theta = steps(work, point, len(work.batches))
        return Trail(w, {}), Personal(theta, {}, personal.weight)
    shared, own, weight = payload.w if output == "mean-shared" else {}, *personal[1:]
    taken = torch.zeros_like(weight)
    for place, batch in enumerate(work.batches):
        # A step that only others take is no point of this client's way.
        taken, weight = taken + batch.active, weight + batch.active
        here = point.theta if output == "mean-shared" else add(point.w, point.theta)
        own = onward(own, here, batch.active / weight)
        shared = onward(shared, point.w, batch.active / taken)
        point = steps(work, point, 1, place)
    return Trail(point.w, shared), Personal(point.theta, own, weight)


def steps(work: Work[Config], point: Sum, count: int, first: int = 0) -> Sum:
    """Some of the round's joint steps."""
    return descend(
        lambda p, batch: work.task.loss(add(p.w, p.theta), batch),
        point,
        work.batches[first : first + count],
        work.sgd,
        rates=(work.sgd.lr, work.config.alpha * work.sgd.lr),
    )


def aggregate(config: Config, server: TrailServer, uploads: Round) -> TrailServer:
    """w ← w + β mean(w_m − w), exactly the mean at β = 1; every round has the same weight."""
    w = mix(uploads.mean.w, server.w, config.beta)
    return averages.take_trail(server, w, uploads, 1.0)


def predictor(work: Work[Config], payload: Trail, personal: Personal) -> Tree:
    """w + θ, or the average of Option II or III."""
    if work.config.output == "mean-own":
        return personal.trail
    if work.config.output == "mean-shared":
        return add(payload.trail, personal.trail)
    return add(payload.w, personal.theta)


def begins_at(work: Work[Config], payload: Trail, personal: Personal) -> Tree:
    """A client's loss is f_m(w + θ_m), under every option."""
    return add(payload.w, personal.theta)


def newcomer(work: Work[Config], payload: Trail, shared: Tree) -> Tree:
    """w stays as it is, and θ takes its steps from 0."""
    theta = descend(
        lambda theta, batch: work.task.loss(add(shared, theta), batch),
        {name: torch.zeros_like(value) for name, value in shared.items()},
        work.batches,
        replace(work.sgd, lr=work.config.alpha * work.sgd.lr),
    )
    return add(shared, theta)


def diagnostics(personal: Personal, shared: Tree) -> Tree:
    """How far the client is from the shared model: the size of θ."""
    size = norm(personal.theta)
    return {"personal_norm": size, "drift": size}


SCHEME = Scheme(
    name="plsgd",
    title="Local SGD with personalization",
    paper="Personalization mitigates the perils of local SGD, algorithm 1",
    shares="w_i, the client's copy of the shared weights after its local steps",
    keeps="theta_i, its correction to the shared weights",
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
    newcomer=newcomer,
    begins_at=begins_at,
    diagnostics=diagnostics,
)
