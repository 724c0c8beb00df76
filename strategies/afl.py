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

:func:`agnostic` makes any scheme that averages agnostic. ``weights = agnostic`` with ``apfl`` is
section 7 of Deng et al. (2020): APFL whose shared half is agnostic. The loss is the one the
scheme averages over clients, at the received weights: f_i(w) for APFL, whatever it predicts with;
f_i(u, v_i) with the client's own v_i for FedSim and FedAlt; f_i(w + θ_i) for personalized Local
SGD, whose options differ in their output alone; f_i(w) for the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from strategies import fedavg
from strategies.core.config import key
from strategies.core.scheme import Federation, Round, Scheme, Work
from strategies.core.task import Task
from strategies.core.trees import Tree, extended

# A weight of exactly 0 could leave a round without any; this much cannot be seen in a mean.
LEAST = 1e-12


@dataclass(frozen=True)
class Config:
    """AFL's keys, which also count for other schemes with ``weights = agnostic``."""

    lambda_lr: float = key(
        0.1, "step size of the mixture weights", low=0.0, degenerate="0 is FedAvg", step=True
    )


def projected(point: Tensor) -> Tensor:
    """The nearest point of the simplex (Duchi et al. 2008, figure 1)."""
    falling = point.sort(descending=True).values
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(point) + 1, dtype=point.dtype)
    last = int((falling > excess).sum()) - 1
    return (point - excess[last]).clamp(min=0)


def agnostic(scheme: Scheme, rate: Callable[[Any], float]) -> Scheme:
    """A scheme whose mean is weighted by λ; ``rate`` finds λ's step size in the config."""
    server_type = extended(scheme.server, mixture=Tree)
    upload_type = extended(scheme.upload, loss=Tensor)

    def init_server(config: Any, task: Task) -> Any:
        return server_type(*scheme.init_server(config, task), {})

    def welcome(config: Any, server: Any, federation: Federation) -> Any:
        """Newcomers get a due share of λ from everybody."""
        *inner, mixture = server
        members = federation.members
        fresh = sorted(set(members) - set(mixture))
        total = sum(member.weight for member in members.values())
        kept = 1 - sum(members[client].weight for client in fresh) / total
        shares = {client: value * kept for client, value in mixture.items()} if fresh else mixture
        for client in fresh:
            shares[client] = torch.tensor(members[client].weight / total, dtype=torch.float64)
        welcomed = scheme.welcome(config, scheme.server(*inner), federation)
        return server_type(*welcomed, dict(sorted(shares.items())))

    def downlink(config: Any, server: Any, clients: Sequence[str]) -> Any:
        return scheme.downlink(config, scheme.server(*server[:-1]), clients)

    def upload_like(config: Any, server: Any) -> Any:
        inner = scheme.upload_like(config, scheme.server(*server[:-1]))
        some = next(iter(inner.w.values()), torch.zeros(()))
        return upload_type(*inner, torch.zeros((), dtype=some.dtype))

    def weigh(config: Any, server: Any, weights: Mapping[str, float]) -> Mapping[str, float]:
        return {client: max(LEAST, float(server.mixture[client])) for client in weights}

    def local_update(work: Work[Any], payload: Any, personal: Any) -> tuple[Any, Any]:
        """The scheme's own, and the loss at the weights it received."""
        own = scheme.begins_at(work, payload, personal)
        with torch.no_grad():
            losses = torch.stack([b.active * work.task.loss(own, b) for b in work.batches])
        loss = losses.sum() / torch.stack([b.active for b in work.batches]).sum()
        upload, personal = scheme.local_update(work, payload, personal)
        return upload_type(*upload, loss), personal

    def aggregate(config: Any, server: Any, uploads: Round) -> Any:
        """The scheme's own, then λ ← Π(λ + γ_λ losses)."""
        *inner, mixture = server
        mean = scheme.upload(*uploads.mean[:-1])
        new = scheme.aggregate(config, scheme.server(*inner), replace(uploads, mean=mean))
        slope = dict.fromkeys(mixture, 0.0)
        scale = len(mixture) / len(uploads.clients)
        for client, loss in zip(uploads.clients, uploads.mean.loss.tolist(), strict=True):
            slope[client] = scale * loss
        point = torch.stack([v + rate(config) * slope[client] for client, v in mixture.items()])
        moved = projected(point) if rate(config) else point
        return server_type(*new, dict(zip(mixture, moved.unbind(), strict=True)))

    return replace(
        scheme,
        shares=f"{scheme.shares}; its loss at the received weights",
        upload=upload_type,
        server=server_type,
        each=(*scheme.each, "loss"),
        init_server=init_server,
        welcome=welcome,
        downlink=downlink,
        upload_like=upload_like,
        weigh=weigh,
        local_update=local_update,
        aggregate=aggregate,
    )


SCHEME = replace(
    agnostic(fedavg.SCHEME, lambda config: config.lambda_lr),
    name="afl",
    title="Agnostic federated learning",
    paper="Mohri, Sivek and Suresh 2019, algorithm 1",
    weights="uniform",
    config=Config,
)
