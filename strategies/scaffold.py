"""SCAFFOLD: control variates take out the drift of local steps.

Karimireddy et al. (2020), *SCAFFOLD: stochastic controlled averaging for federated
learning*, algorithm 1, option II for the control variates.

====================  =================================================
paper                 here
====================  =================================================
x, y_i                ``payload.w``; its end point after local steps
c                     ``payload.c``, the server's control variate
c_i                   ``personal.c``, starts at 0 like c
Δy_i, Δc_i            ``upload.w``, ``upload.c``
K η_l                 ``work.reach``, the sum of the client's step sizes
η_g                   ``scaffold.server-lr``
====================  =================================================

A local step is y ← y − η_l (∇f(y) − c_i + c): a gradient step on f(y) + ⟨y, c − c_i⟩.
Running statistics have no control variate and are sent as they are, not as a change.
c_i starts at 0, so what a client sends the first time, Δc_i, is its c_i, and whoever adds up all
that it sends knows its c_i ever after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.config import key
from bouquet.core.scheme import Round, Scheme, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, dot, norm, without_statistics


class Personal(NamedTuple):
    """What stays on the device: the client's control variate."""

    c: Tree


class Pair(NamedTuple):
    """Weights, or their change, and a control variate, or its change."""

    w: Tree
    c: Tree


def zeros(task: Task) -> Tree:
    """Where control variates start."""
    weights = without_statistics(task.initial)
    return {name: torch.zeros_like(value) for name, value in weights.items()}


@dataclass(frozen=True)
class Scaffold(Scheme[Personal, Pair, Pair, Pair]):
    """Stochastic controlled averaging."""

    name = "scaffold"
    title = "Stochastic controlled averaging"
    paper = "Karimireddy et al. 2020, algorithm 1, option II"
    shares = "the changes of its weights and of its control variate"
    keeps = "c_i, its control variate"
    derivable = "c_i, always: the changes it sends add up to it"
    plain = "whose control variates are the local steps' mean gradient, (x - y_i) / (K lr)"
    first_shows = True  # c_i starts at 0, so the first Δc_i is c_i

    server_lr: float = key(
        1.0, "step of the server along the mean change", low=0.0, open_low=True, step=True
    )

    def init_personal(self, task: Task, examples: int) -> Personal:
        """c_i starts at 0."""
        return Personal(zeros(task))

    def init_server(self, task: Task) -> Pair:
        """C starts at 0."""
        return Pair(task.initial, zeros(task))

    def local_update(self, work: Work, payload: Pair, personal: Personal) -> tuple[Pair, Personal]:
        """Corrected steps, then c_i⁺ = c_i − c + (x − y_i) / (K η_l)."""
        x, c, c_i = payload.w, payload.c, personal.c
        correction = {name: c[name] - c_i[name] for name in c}

        def objective(y: Tree, batch: Batch) -> Tensor:
            return work.task.loss(y, batch) + dot(y, correction)

        y = work.descend(objective, x, work.batches)
        reach = work.reach
        new = {n: c_i[n] - c[n] + (x[n] - y[n]) / reach for n in c}
        moved = y | {n: y[n] - x[n] for n in c}
        change = Pair(moved, {n: new[n] - c_i[n] for n in c})
        return change, Personal(new)

    def predictor(self, work: Work, payload: Pair, personal: Personal) -> Tree:
        """The shared model."""
        return payload.w

    def downlink(self, server: Pair, clients: Sequence[str]) -> Pair:
        """X and c."""
        return server

    def upload_like(self, server: Pair) -> Pair:
        """Their changes look like them."""
        return server

    def unmoved(self, server: Pair) -> Pair:
        """Uploads are changes; statistics are sent as they are."""
        still = {name: torch.zeros_like(value) for name, value in server.c.items()}
        return Pair(server.w | still, still)

    def aggregate(self, server: Pair, uploads: Round[Pair]) -> Pair:
        """X ← x + η_g mean Δy, c ← c + (|S| / N) mean Δc."""
        share = len(uploads.clients) / len(uploads.federation.members)
        mean = uploads.mean
        return Pair(
            mean.w | {n: server.w[n] + self.server_lr * mean.w[n] for n in server.c},
            {n: value + share * mean.c[n] for n, value in server.c.items()},
        )

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """The size of the client's control variate."""
        return {"personal_norm": norm(personal.c)}
