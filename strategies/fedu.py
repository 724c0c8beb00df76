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

from bouquet.core.scheme import Federation, Round, Work
from bouquet.core.task import Task
from bouquet.core.trees import (
    Forest,
    Nothing,
    Tree,
    mean_of_rows,
    rows,
    stack_trees,
    without_statistics,
)
from bouquet.strategies.graphs import OnGraph


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


def neighbour_sums(weights: Tensor, models: Tree) -> Tree:
    """Σ_l a_kl w_l for each row of weights."""
    return {
        name: torch.tensordot(weights, value.double(), dims=1).to(value.dtype)
        for name, value in models.items()
    }


def mix_in(own: Tree, sums: Tree, degree: Tensor, pace: Tensor) -> Tree:
    """w_k − μ̃ η (d_k w_k − Σ_l a_kl w_l), for one client or, with a first axis, for several.

    Running statistics stay the client's own: far from its neighbours' they could become negative.
    """

    def by_client(value: Tensor, like: Tensor) -> Tensor:
        return value.to(like.dtype).reshape(value.shape + (1,) * (like.ndim - value.ndim))

    return own | {
        name: value - by_client(pace, value) * (by_client(degree, value) * value - sums[name])
        for name, value in without_statistics(own).items()
    }


def mean_of(ids: Sequence[str], models: Forest, initial: Tree) -> Tree:
    """The mean over all clients, those that never took part at the initial weights."""
    if not ids:
        return initial
    return mean_of_rows(stack_trees([models.get(client, initial) for client in ids]))


@dataclass(frozen=True)
class FedU(OnGraph[Nothing, Payload, Upload, Server]):
    """Federated multi-task learning with Laplacian regularization."""

    name = "fedu"
    title = "Federated multi-task learning with Laplacian regularization"
    paper = "Dinh et al. 2021, algorithm 1"
    shares = "w_i, the client's own model after its local steps"
    keeps = "nothing but what it sent: the server mixes and returns its model"
    payload_rows = ("w",)
    upload_rows = ("w", "reach")

    def init_server(self, task: Task) -> Server:
        """Nobody took part yet."""
        return Server(task.initial, {}, task.initial, torch.zeros(0, 0, dtype=torch.float64))

    def welcome(self, server: Server, federation: Federation) -> Server:
        """Draw the graph of those who are there."""
        mean = mean_of(sorted(federation.members), server.models, server.initial)
        return server._replace(graph=self.drawn(federation), mean=mean)

    def downlink(self, server: Server, clients: Sequence[str]) -> Payload:
        """Each client's own model, and the mean."""
        own = [server.models.get(client, server.initial) for client in clients]
        return Payload(server.mean, stack_trees(own))

    def local_update(
        self, work: Work, payload: Payload, personal: Nothing
    ) -> tuple[Upload, Nothing]:
        """R local steps from the client's own model."""
        w = work.descend(work.task.loss, payload.w, work.batches)
        return Upload(w, work.reach), personal

    def upload_like(self, server: Server) -> Upload:
        """An upload has a model and a number."""
        dtype = next(iter(server.initial.values())).dtype
        return Upload(server.initial, torch.zeros((), dtype=dtype))

    def aggregate(self, server: Server, uploads: Round[Upload]) -> Server:
        """The mixing step of algorithm 1, line 14, for the sampled clients."""
        ids = sorted(uploads.federation.members)
        sampled = [ids.index(client) for client in uploads.clients]
        known = {name: dict(tree) for name, tree in server.models.items()}
        for place, client in enumerate(uploads.clients):
            known[client] = {name: value[place] for name, value in uploads.mean.w.items()}
        everyone = stack_trees([known.get(client, server.initial) for client in ids])
        weights = server.graph.clone()
        if self.neighbours == "sampled":
            weights[:, [place for place in range(len(ids)) if place not in sampled]] = 0.0
        own = rows(everyone, sampled)
        sums = neighbour_sums(weights[sampled], everyone)
        mixed = mix_in(own, sums, weights[sampled].sum(dim=1), self.eta * uploads.mean.reach)
        models = dict(server.models)
        for place, client in enumerate(uploads.clients):
            models[client] = {name: value[place].clone() for name, value in mixed.items()}
        return server._replace(models=models, mean=mean_of(ids, models, server.initial))

    def predictor(self, work: Work, payload: Payload, personal: Nothing) -> Tree:
        """The client's own model, as the server mixed it."""
        return payload.w

    def shared(self, task: Task, payload: Payload) -> Tree:
        """The mean of all models, which a client without data would use."""
        return payload.mean
