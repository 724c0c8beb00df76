"""IFCA: several models, of which every client trains the one that fits it best.

Ghosh, Chung, Yin and Ramchandran (2020), *An efficient framework for clustered federated
learning*, algorithm 1: option II (model averaging), and option I (gradient averaging).

====================  ==========================================================
paper                 here
====================  ==========================================================
θ_j, j = 1 … k        ``payload.models``, with the cluster as first axis
F_i                   the mean loss on the client's training data
ĵ                     argmin_j F_i(θ_j), the first where several are equal
s_i                   ``upload.share``: 1 for ĵ, else 0
θ̃_i                   ``upload.models``: in row ĵ, the other rows are 0
γ, τ                  ``sgd.lr``, local steps
k                     ``ifca.clusters``
====================  ==========================================================

With option II a cluster's model becomes the mean of its members', θ_j = Σ s_ij θ̃_i / Σ s_ij; a
cluster nobody chose stays as it is. The server needs the two sums alone, so a node that hosts many
clients sends theirs; it does learn how many chose which cluster, and of a client alone on its node
which one. With option I (``ifca.averaging = gradients``, one local step) the server steps along
the mean over *all* m clients of the round, θ_j ← θ_j − (γ/m) Σ s_ij ∇F_i(θ_j): small clusters
are slow. ``batch-size = 0`` makes ∇F_i the whole gradient.

The first model starts at the initial weights. The others are drawn tensor by tensor from the
normal distribution with these weights' mean and deviation, by a seed made of them, so that they
are the same on every engine and others with another seed. The paper starts at random, or near
enough to the solution; ``ifca.apart`` below 1 starts them nearer to the first, for weights that
were trained before: a random model would never be chosen beside them.

A client predicts with the model of least loss on its training data. What is reported as the shared
model is the one that most clients of the last round chose. Layers that all clusters share
(section 5) are not here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.config import key
from bouquet.core.errors import BadInput
from bouquet.core.scheme import Federation, Round, Scheme, Work
from bouquet.core.seeding import generator
from bouquet.core.task import Task
from bouquet.core.trees import Nothing, Tree, mix, sha256, stack_trees


class Clusters(NamedTuple):
    """Models, one for each cluster, and the clusters' shares in the clients of a round."""

    models: Tree
    share: Tensor


def beside(share: Tensor, models: Tensor) -> Tensor:
    """A number for each cluster, to multiply its tensor with."""
    return share.reshape(-1, *[1] * (models.ndim - 1))


def chosen(models: Tree, which: Tensor) -> Tree:
    """One of the models."""
    return {n: value.index_select(0, which.reshape(1)).squeeze(0) for n, value in models.items()}


def random_like(initial: Tree, number: int) -> Tree:
    """Other weights of the same mean and deviation."""
    seed = sha256({name: value.float() for name, value in initial.items()})
    draw = generator("ifca", seed, number).standard_normal
    return {
        name: value.mean()
        + value.std(correction=0) * torch.as_tensor(draw(tuple(value.shape)), dtype=value.dtype)
        for name, value in initial.items()
    }


@dataclass(frozen=True)
class IFCA(Scheme[Nothing, Clusters, Clusters, Clusters]):
    """Iterative federated clustering."""

    name = "ifca"
    title = "Iterative federated clustering"
    paper = "Ghosh et al. 2020, algorithm 1"
    shares = "w_i, the chosen cluster's weights after its local steps, and which it chose"

    clusters: int = key(2, "models there are", low=1, high=1000, degenerate="1 is FedAvg")
    averaging: str = key(
        "models",
        "a cluster's model becomes its members' mean, or steps along the mean over all clients",
        choices=("models", "gradients"),
    )
    apart: float = key(
        1.0,
        "how far from the first the other models start: 1 = at random, less = between",
        low=0.0,
        high=1.0,
        open_low=True,
    )

    def looks(self) -> float:
        """At all its training data, to choose."""
        return 1.0

    def advise(self, federation: Federation) -> str:
        """A gradient is one step."""
        if self.averaging == "gradients" and federation.steps != 1:
            work = f"{federation.steps}" if federation.steps else "passes over the data"
            raise BadInput(
                "local-steps must be 1 with ifca.averaging 'gradients', which averages one "
                f"gradient a client, not {work}."
            )
        return ""

    def init_server(self, task: Task) -> Clusters:
        """K starts."""
        others = [random_like(task.initial, number) for number in range(1, self.clusters)]
        starts = [task.initial, *(mix(other, task.initial, self.apart) for other in others)]
        models = stack_trees(starts)
        dtype = next(iter(task.initial.values())).dtype
        return Clusters(models, torch.zeros(self.clusters, dtype=dtype))

    def downlink(self, server: Clusters, clients: Sequence[str]) -> Clusters:
        """All models."""
        return server

    def upload_like(self, server: Clusters) -> Clusters:
        """A row for each cluster, of which one is filled."""
        return server

    def choice(self, work: Work, payload: Clusters) -> Tensor:
        """Ĵ, the cluster of least loss."""
        losses = [
            work.loss_on_data({name: value[number] for name, value in payload.models.items()})
            for number in range(self.clusters)
        ]
        return torch.stack(losses).argmin()

    def local_update(
        self, work: Work, payload: Clusters, personal: Nothing
    ) -> tuple[Clusters, Nothing]:
        """Local steps on the chosen model."""
        with torch.no_grad():
            which = self.choice(work, payload)
        w = work.descend(work.task.loss, chosen(payload.models, which), work.batches)
        places = torch.ones_like(payload.share).cumsum(0) - 1
        share = (places == which).to(payload.share.dtype)
        filled = {name: beside(share, payload.models[name]) * value for name, value in w.items()}
        return Clusters(filled, share), personal

    def aggregate(self, server: Clusters, uploads: Round[Clusters]) -> Clusters:
        """Each cluster's mean, or its step along the mean of all."""
        sums, share = uploads.mean
        models = {}
        for name, value in sums.items():
            part = beside(share, value)
            if self.averaging == "gradients":
                models[name] = value + (1 - part) * server.models[name]
            else:
                mean = value / torch.where(part > 0, part, 1)
                models[name] = torch.where(part > 0, mean, server.models[name])
        return Clusters(models, share)

    def predictor(self, work: Work, payload: Clusters, personal: Nothing) -> Tree:
        """The model of least loss on the client's training data."""
        return chosen(payload.models, self.choice(work, payload))

    def shared(self, task: Task, payload: Clusters) -> Tree:
        """The model that most clients of the last round chose."""
        return chosen(payload.models, payload.share.argmax())

    def newcomer(self, work: Work, payload: Clusters, shared: Tree) -> Tree:
        """A newcomer chooses as everybody does, and goes on from there."""
        own = chosen(payload.models, self.choice(work, payload))
        return work.descend(work.task.loss, own, work.batches)
