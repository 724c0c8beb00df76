"""FedAvg: one model for everyone.

McMahan et al. (2017), *Communication-efficient learning of deep networks from
decentralized data*, algorithm 1.

====================  =====================================
paper                 here
====================  =====================================
w_t                   ``payload.w``
w_{t+1}^k             ``upload.w``
η                     ``sgd.lr``
n_k / n               the uploads' weights (``examples``)
====================  =====================================
"""

from dataclasses import dataclass

from bouquet.core.scheme import Averaging, Model, Work
from bouquet.core.trees import Nothing, Tree


@dataclass(frozen=True)
class FedAvg(Averaging[Nothing]):
    """Federated averaging."""

    name = "fedavg"
    title = "Federated averaging"
    paper = "McMahan et al. 2017, algorithm 1"
    shares = "w_i, the client's weights after its local steps"
    weights = "examples"

    def local_update(self, work: Work, payload: Model, personal: Nothing) -> tuple[Model, Nothing]:
        """ClientUpdate: SGD on the client's loss from the received weights."""
        return Model(work.descend(work.task.loss, payload.w, work.batches)), personal

    def predictor(self, work: Work, payload: Model, personal: Nothing) -> Tree:
        """The shared model: nothing is personal."""
        return payload.w
