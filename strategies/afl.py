"""AFL: agnostic federated learning, good for any mixture of the clients.

Mohri, Sivek and Suresh (2019), *Agnostic federated learning*, algorithm 1 with local steps:
the shared model minimizes the worst mixture Σ λ_i f_i(w), λ on the simplex.

====================  ====================================================
paper                 here
====================  ====================================================
w                     ``payload.w``, then ``upload.w``
λ_i                   ``server.mixture``, a client's weight in the mean
L_i(w)                ``upload.loss``, at the received w, on the round's batches
γ_λ                   ``afl.lambda-lr``
====================  ====================================================

A round averages with the λ it started with and then moves λ: one step of ascent on the
clients' losses and the Euclidean projection back onto the simplex. Of clients that were not
sampled nothing is known: their slope counts as 0, and the others' N / K times, which is right
on average. λ starts at the weights that ``weights`` gives.

``Agnostic`` makes any scheme that averages agnostic. ``weights = agnostic`` with ``apfl`` is
section 7 of Deng et al. (2020): APFL whose shared half is agnostic. The loss is the one the
scheme averages over clients, at the received weights: f_i(w) for APFL, whatever it predicts with;
f_i(u, v_i) with the client's own v_i for FedSim and FedAlt; f_i(w + θ_i) for personalized Local
SGD, whose options differ in their output alone; f_i(w) for the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bouquet.core.config import key
from bouquet.core.scheme import AnyScheme, Federation, Records, Round, Work
from bouquet.core.task import Task
from bouquet.core.trees import Tree, extended
from bouquet.core.wrapper import Wrapper
from bouquet.strategies.fedavg import FedAvg

# A weight of exactly 0 could leave a round without any; this much cannot be seen in a mean.
LEAST = 1e-12
# Beyond this a weight's digits would be lost beside a client's loss.
LARGE = 1e6


@dataclass(frozen=True)
class AFL(FedAvg):
    """Agnostic federated learning; its key also counts for others with ``weights = agnostic``."""

    name = "afl"
    title = "Agnostic federated learning"
    paper = "Mohri, Sivek and Suresh 2019, algorithm 1"
    weights = "uniform"

    lambda_lr: float = key(
        0.1, "step size of the mixture weights", low=0.0, degenerate="0 is FedAvg", step=True
    )

    def assembled(self) -> AnyScheme:
        """FedAvg with weights of its own."""
        return Agnostic(self, self.lambda_lr)


def projected(point: Tensor) -> Tensor:
    """The nearest point of the simplex (Duchi et al. 2008, figure 1)."""
    if float(point.abs().max()) > LARGE:
        point = point - point.max()  # the nearest point is the same, and no digits are lost
    falling = point.sort(descending=True).values
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(point) + 1, dtype=point.dtype)
    last = int((falling > excess).sum()) - 1
    return (point - excess[last]).clamp(min=0)


@dataclass(frozen=True)
class Agnostic(Wrapper):
    """A scheme whose mean is weighted by λ.

    Parameters
    ----------
    inner : Scheme
        One that averages.
    rate : float
        γ_λ, the step size of λ.
    """

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        told = {
            "shares": f"{self.inner.shares}; its loss at the received weights",
            "upload_rows": (*self.inner.upload_rows, "loss"),
        }
        for fact, value in told.items():
            object.__setattr__(self, fact, value)

    @property
    def records(self) -> Records:
        """The scheme's own, with a client's loss and everybody's weights."""
        inner = self.inner.records
        return inner._replace(
            upload=extended(inner.upload, loss=Tensor), server=extended(inner.server, mixture=Tree)
        )

    def init_server(self, task: Task) -> Any:
        """Nobody is there yet."""
        return self.records.server(*self.inner.init_server(task), {})

    def server_of(self, server: Any) -> Any:
        """All but λ."""
        return self.inner.records.server(*server[:-1])

    def server_with(self, inner: Any, server: Any) -> Any:
        """The same λ beside another state of the scheme's own."""
        return self.records.server(*inner, server.mixture)

    def welcome(self, server: Any, federation: Federation) -> Any:
        """Newcomers get a due share of λ from everybody."""
        members, mixture = federation.members, server.mixture
        fresh = sorted(set(members) - set(mixture))
        total = sum(member.weight for member in members.values())
        kept = 1 - sum(members[client].weight for client in fresh) / total
        shares = {client: value * kept for client, value in mixture.items()} if fresh else mixture
        for client in fresh:
            shares[client] = torch.tensor(members[client].weight / total, dtype=torch.float64)
        welcomed = self.inner.welcome(self.server_of(server), federation)
        return self.records.server(*welcomed, dict(sorted(shares.items())))

    def upload_like(self, server: Any) -> Any:
        """An upload has a number more."""
        inner = super().upload_like(server)
        some = next(iter(inner.w.values()), torch.zeros(()))
        return self.records.upload(*inner, torch.zeros((), dtype=some.dtype))

    def unmoved(self, server: Any) -> Any:
        """The scheme's own; a loss has no point to be counted from."""
        return self.records.upload(*super().unmoved(server), self.upload_like(server).loss)

    def weigh(self, server: Any, weights: Mapping[str, float]) -> Mapping[str, float]:
        """λ."""
        return {client: max(LEAST, float(server.mixture[client])) for client in weights}

    def local_update(self, work: Work, payload: Any, personal: Any) -> tuple[Any, Any]:
        """The scheme's own, and the loss at the weights it received."""
        own = self.inner.begins_at(work, payload, personal)
        with torch.no_grad():
            losses = torch.stack([b.active * work.task.loss(own, b) for b in work.batches])
        loss = losses.sum() / torch.stack([b.active for b in work.batches]).sum()
        upload, personal = self.inner.local_update(work, payload, personal)
        return self.records.upload(*upload, loss), personal

    def aggregate(self, server: Any, uploads: Round[Any]) -> Any:
        """The scheme's own, then λ ← Π(λ + γ_λ losses)."""
        mean, mixture = self.inner.records.upload(*uploads.mean[:-1]), server.mixture
        new = self.inner.aggregate(self.server_of(server), replace(uploads, mean=mean))
        slope = dict.fromkeys(mixture, 0.0)
        scale = len(mixture) / len(uploads.clients)
        for client, loss in zip(uploads.clients, uploads.mean.loss.tolist(), strict=True):
            slope[client] = scale * loss
        point = torch.stack([v + self.rate * slope[client] for client, v in mixture.items()])
        moved = projected(point) if self.rate else point
        return self.records.server(*new, dict(zip(mixture, moved.unbind(), strict=True)))
