"""FedRoD: a shared model that is fair to all classes, and a head of one's own on top of it.

Chen and Chao (2022), *On bridging generic and personalized federated learning for image
classification*, algorithm 1 with a linear personalized head.

====================  ==========================================================
paper                 here
====================  ==========================================================
θ, ψ                  ``payload.w``, then ``upload.w``: features and G-head
φ_m                   ``personal.phi``: the P-head, starts at 0
L^BSM                 the loss of outputs to which γ log N_{m,c} is added
N_{m,c}               examples of class c in the client's training data
γ                     ``fedrod.gamma``
η                     ``sgd.lr``
|D_m| / |D|           the uploads' weights (``examples``)
====================  ==========================================================

Two predictors with two losses on the same features z = f(x; θ). The generic one, h^G(z; ψ), takes
steps on the balanced softmax (Ren et al. 2020), in which a client's classes count alike however
many examples it has of each; classes it has none of drop out of its loss. The personalized one,
h^G(z; ψ) + h^P(z; φ_m), takes steps on the plain loss, in φ_m alone: neither features nor G-head
see its gradient. A local step is one joint step of both from the same point on the same batch. At
γ = 0 the generic half is FedAvg, whatever φ does.

Both heads are linear in the same z, so their sum is one layer with the weights ψ + φ_m: φ_m is kept
as a correction to the output layer, and a client's own model has the shared one's form; a model
without such a layer, as the transformer, whose embedding serves as one, is refused. How φ_m
starts the paper leaves open; at 0 a client predicts with the shared model until it has learned. The
variant whose P-head comes from a hypernetwork is not here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.config import key
from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES
from bouquet.core.scheme import Averaging, Model, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, detach, norm


class Personal(NamedTuple):
    """What stays on the device."""

    phi: Tree


class Heads(NamedTuple):
    """What a local step moves, and the log of the classes' weights, which rests."""

    w: Tree
    phi: Tree
    prior: Tensor


def topped(w: Tree, phi: Tree) -> Tree:
    """The model whose output layer has the weights ψ + φ."""
    return {**w, **{name: w[name] + value for name, value in phi.items()}}


def labels_of(batch: Batch) -> Tensor:
    """A batch's labels one after the other, of a text those of all positions; padding has none."""
    padded = (batch.weight == 0).reshape(-1, *[1] * (batch.y.ndim - 1))
    return batch.y.masked_fill(padded, -1).flatten()


@dataclass(frozen=True)
class FedRoD(Averaging[Personal]):
    """Federated robust decoupling."""

    name = "fedrod"
    title = "Federated robust decoupling"
    paper = "Chen and Chao 2022, algorithm 1, linear head"
    shares = "features and the generic head after its local steps"
    keeps = "phi_i, its own head, a correction to the generic one"
    weights = "examples"

    gamma: float = key(
        1.0,
        "power of the classes' counts in the shared model's loss",
        low=0.0,
        degenerate="0 shares what FedAvg shares",
    )

    def personal_part(self, split: str) -> str:
        """The head is the output layer."""
        return "output"

    def looks(self) -> float:
        """At the labels of all its training data."""
        return 1.0

    def init_server(self, task: Task) -> Model:
        """The initial weights, of a model that tells classes apart."""
        if not task.classes or task.targets != CLASSES:
            raise BadInput(
                "scheme must not be 'fedrod' for data without classes, which it could not balance."
            )
        if len({name.rpartition(".")[0] for name in task.personal}) > 1:
            raise BadInput(
                "scheme must not be 'fedrod' for a model whose output is no layer of its own, such "
                "as 'transformer', whose output layer is its embedding."
            )
        return super().init_server(task)

    def init_personal(self, task: Task, examples: int) -> Personal:
        """φ starts at 0."""
        return Personal({name: torch.zeros_like(task.initial[name]) for name in task.personal})

    def prior(self, work: Work) -> Tensor:
        """γ log N_{m,c}, of a class without examples minus infinity."""
        labels = torch.cat([labels_of(batch) for batch in work.data])
        counts = torch.stack([(labels == one).sum() for one in range(work.task.classes)])
        return counts.to(work.data[0].weight.dtype).pow(self.gamma).log()

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """Joint steps, the features and the G-head on one loss and the P-head on the other."""

        def objective(p: Heads, batch: Batch) -> Tensor:
            own = topped(detach(p.w), p.phi)
            return work.task.loss(p.w, batch, p.prior) + work.task.loss(own, batch)

        start = Heads(payload.w, personal.phi, self.prior(work))
        point = work.descend(objective, start, work.batches, hold=("prior",))
        return Model(point.w), Personal(point.phi)

    def predictor(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """h^G + h^P with the newest features and G-head."""
        return topped(payload.w, personal.phi)

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """The shared model stays as it is, and φ takes its steps from 0."""
        return topped(shared, self.tuned(work, shared, work.batches))

    def tuned(self, work: Work, shared: Tree, batches: Sequence[Batch]) -> Tree:
        """φ from 0 after steps with the rest fixed."""
        zero = self.init_personal(work.task, 1).phi
        return work.descend(
            lambda phi, batch: work.task.loss(topped(shared, phi), batch), zero, batches
        )

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """How far the client is from the shared model: the size of φ."""
        size = norm(personal.phi)
        return {"personal_norm": size, "drift": size}
