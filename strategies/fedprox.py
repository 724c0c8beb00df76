"""FedProx: FedAvg whose clients are held near the model they received.

Li et al. (2020), *Federated optimization in heterogeneous networks*, algorithm 2.

====================  ==============================================
paper                 here
====================  ==============================================
w^t                   ``payload.w``
w_k^{t+1}             ``upload.w``
h_k(w; w^t)           f(w) + (μ/2) ‖w − w^t‖²
μ                     ``fedprox.mu``
====================  ==============================================
"""

from dataclasses import dataclass

from torch import Tensor

from bouquet.core.config import key
from bouquet.core.scheme import Model, Work
from bouquet.core.task import Batch
from bouquet.core.trees import Nothing, Tree, half_square
from bouquet.strategies.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    name = "fedprox"
    title = "FedAvg with a proximal term"
    paper = "Li et al. 2020, algorithm 2"

    mu: float = key(
        0.1, "pull towards the received model", low=0.0, degenerate="0 is FedAvg", step=True
    )

    def local_update(self, work: Work, payload: Model, personal: Nothing) -> tuple[Model, Nothing]:
        """SGD on h_k from the received weights."""

        def objective(w: Tree, batch: Batch) -> Tensor:
            return work.task.loss(w, batch) + self.mu * half_square(w, payload.w)

        return Model(work.descend(objective, payload.w, work.batches)), personal
