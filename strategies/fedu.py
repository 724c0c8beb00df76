"""FedU: every client its own model, pulled towards its neighbours' in a graph.

Dinh, Vu, Tran, Dao and Zhang (2021), *FedU: a unified framework for federated multi-task
learning with Laplacian regularization*, algorithm 1.

====================  ======================================================
paper                 here
====================  ======================================================
w_k^(t)               ``payload.w``, kept in ``server.models``
w_{k,R}^(t)           ``upload.w``
μ, R                  ``sgd.lr``, local steps
μ̃ = μR                ``upload.reach``
η                     ``fedu.eta``
a_kl                  ``server.graph``, in order of the clients' ids
====================  ======================================================

After R local steps the server moves all sampled models at once, from the same values:
w_k ← w_{k,R} − μ̃ η Σ_l a_kl (w_{k,R} − w_{l,R}). Of a neighbour that was not sampled it takes
the last model it knows (algorithm 1), or with ``neighbours = sampled`` nothing (the text).

There is no shared model; what is reported as one is the mean of the clients'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.core.config import key
from strategies.core.descent import descend
from strategies.core.graphs import KINDS, graph, roughest
from strategies.core.scheme import Federation, Round, Scheme, Work
from strategies.core.task import Task
from strategies.core.trees import Forest, Nothing, Tree, mean_of_rows, rows, stack_trees

EXCEPTION = "multi-task learning: a client's own model travels, to be compared with the others'"


@dataclass(frozen=True)
class Config:
    """FedU's keys."""

    eta: float = key(
        0.01, "pull towards the neighbours", low=0.0, degenerate="0 is Local", step=True
    )
    graph: str = key("equal", "who is whose neighbour", choices=KINDS)
    graph_file: str = key("", "graph 'file': a matrix of weights, CSV or JSON")
    neighbours: str = key(
        "all",
        "all: with the last known models of those not sampled; sampled: without them",
        choices=("all", "sampled"),
    )


class Payload(NamedTuple):
    """The mean of all models, and the client's own."""

    mean: Tree
    w: Tree


class Upload(NamedTuple):
    """A client's model, and how far its local steps reach: μ̃ = μR."""

    w: Tree
    reach: Tensor


class Server(NamedTuple):
    """Where models start, those of clients that took part, their mean, and the graph."""

    initial: Tree
    models: Forest
    mean: Tree
    graph: Tensor


def init_server(config: Config, task: Task) -> Server:
    """Nobody took part yet."""
    return Server(task.initial, {}, task.initial, torch.zeros(0, 0, dtype=torch.float64))


def welcome(config: Config, server: Server, federation: Federation) -> Server:
    """Draw the graph of those who are there."""
    drawn = graph(config.graph, config.graph_file, federation, "fedu")
    ids = sorted(federation.members)
    return server._replace(graph=drawn, mean=mean_of(ids, server.models, server.initial))


def advise(config: Config, federation: Federation) -> str:
    """Warn where mixing no longer brings models together."""
    drawn = graph(config.graph, config.graph_file, federation, "fedu")
    return contraction(config.eta, federation, drawn, "fedu")


def contraction(eta: float, federation: Federation, drawn: Tensor, name: str) -> str:
    """What to say where μ̃ η λ_max(L) exceeds 2: the mixing step overshoots."""
    # Where passes are counted, clients reach differently far; each takes at least one step.
    factor = federation.lr * max(1, federation.steps) * eta * roughest(drawn)
    if factor <= 2:
        return ""
    return (
        f"{name}.eta {eta:g} is too large for this graph: lr * local-steps * eta * lambda_max is "
        f"{factor:.3g}, and above 2 mixing drives the models apart."
    )


def downlink(config: Config, server: Server, clients: Sequence[str]) -> Payload:
    """Each client's own model, and the mean."""
    own = [server.models.get(client, server.initial) for client in clients]
    return Payload(server.mean, stack_trees(own))


def local_update(work: Work[Config], payload: Payload, personal: Nothing) -> tuple[Upload, Nothing]:
    """R local steps from the client's own model."""
    w = descend(work.task.loss, payload.w, work.batches, work.sgd)
    return Upload(w, reach(work)), personal


def reach(work: Work[Config]) -> Tensor:
    """μ̃ = μR, with the steps the client really takes."""
    return work.sgd.lr * torch.stack([batch.active for batch in work.batches]).sum()


def upload_like(config: Config, server: Server) -> Upload:
    """An upload has a model and a number."""
    dtype = next(iter(server.initial.values())).dtype
    return Upload(server.initial, torch.zeros((), dtype=dtype))


def aggregate(config: Config, server: Server, uploads: Round) -> Server:
    """The mixing step of algorithm 1, line 14, for the sampled clients."""
    ids = sorted(uploads.federation.members)
    sampled = [ids.index(client) for client in uploads.clients]
    known = {name: dict(tree) for name, tree in server.models.items()}
    for place, client in enumerate(uploads.clients):
        known[client] = {name: value[place] for name, value in uploads.mean.w.items()}
    everyone = stack_trees([known.get(client, server.initial) for client in ids])
    weights = server.graph.clone()
    if config.neighbours == "sampled":
        weights[:, [place for place in range(len(ids)) if place not in sampled]] = 0.0
    own = rows(everyone, sampled)
    sums = neighbour_sums(weights[sampled], everyone)
    mixed = mix_in(own, sums, weights[sampled].sum(dim=1), config.eta * uploads.mean.reach)
    models = dict(server.models)
    for place, client in enumerate(uploads.clients):
        models[client] = {name: value[place].clone() for name, value in mixed.items()}
    return server._replace(models=models, mean=mean_of(ids, models, server.initial))


def neighbour_sums(weights: Tensor, models: Tree) -> Tree:
    """Σ_l a_kl w_l for each row of weights."""
    return {
        name: torch.tensordot(weights, value.double(), dims=1).to(value.dtype)
        for name, value in models.items()
    }


def mix_in(own: Tree, sums: Tree, degree: Tensor, pace: Tensor) -> Tree:
    """w_k − μ̃ η (d_k w_k − Σ_l a_kl w_l), for one client or, with a first axis, for several."""

    def by_client(value: Tensor, like: Tensor) -> Tensor:
        return value.to(like.dtype).reshape(value.shape + (1,) * (like.ndim - value.ndim))

    return {
        name: value - by_client(pace, value) * (by_client(degree, value) * value - sums[name])
        for name, value in own.items()
    }


def mean_of(ids: Sequence[str], models: Forest, initial: Tree) -> Tree:
    """The mean over all clients, those that never took part at the initial weights."""
    if not ids:
        return initial
    return mean_of_rows(stack_trees([models.get(client, initial) for client in ids]))


def predictor(work: Work[Config], payload: Payload, personal: Nothing) -> Tree:
    """The client's own model, as the server mixed it."""
    return payload.w


def shared(config: Config, task: Task, payload: Payload) -> Tree:
    """The mean of all models, which a client without data would use."""
    return payload.mean


SCHEME = Scheme(
    name="fedu",
    title="Federated multi-task learning with Laplacian regularization",
    paper="Dinh et al. 2021, algorithm 1",
    shares="w_i, the client's own model after its local steps",
    keeps="nothing but what it sent: the server mixes and returns its model",
    exception=EXCEPTION,
    config=Config,
    payload=Payload,
    upload=Upload,
    server=Server,
    own=("w",),
    each=("w", "reach"),
    init_server=init_server,
    welcome=welcome,
    advise=advise,
    downlink=downlink,
    upload_like=upload_like,
    local_update=local_update,
    aggregate=aggregate,
    predictor=predictor,
    shared=shared,
)
