"""Minibatch SGD: every client's gradient on a large batch, one step for all.

The baseline local steps must beat (Woodworth et al. 2020, *Minibatch vs local SGD for
heterogeneous distributed learning*): each round the clients take the gradient at the shared
weights on all the batches of the round, and the server makes one step with their mean.

====================  ==================================================
paper                 here
====================  ==================================================
x_t                   ``payload.w``
M K                   the clients of a round, times its local steps
γ                     ``sgd.lr``
====================  ==================================================
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.scheme import Model, Work
from bouquet.core.task import Batch
from bouquet.core.trees import Nothing, Tree
from bouquet.strategies.fedavg import FedAvg


class Large(NamedTuple):
    """All the batches of a round as one."""

    batches: list[Batch]
    active: Tensor


@dataclass(frozen=True)
class Minibatch(FedAvg):
    """Minibatch SGD."""

    name = "minibatch"
    title = "Minibatch SGD"
    paper = "baseline: Woodworth et al. 2020"
    shares = "w_i, the weights after one step on all its batches"
    weights = "uniform"
    plain = "whose mean of the clients' steps is one step on all their batches"

    def local_update(self, work: Work, payload: Model, personal: Nothing) -> tuple[Model, Nothing]:
        """One step on the mean loss of the round's batches."""
        active = torch.stack([batch.active for batch in work.batches])

        def objective(w: Tree, large: Large) -> Tensor:
            losses = torch.stack([work.task.loss(w, batch) for batch in large.batches])
            return losses @ active / active.sum()

        large = Large(list(work.batches), torch.ones_like(active[0]))
        return Model(work.descend(objective, payload.w, [large])), personal
