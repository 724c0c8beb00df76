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

from strategies.core.descent import descend
from strategies.core.scheme import Model, NoKeys, Scheme, Work
from strategies.core.trees import Nothing, Tree


def local_update(work: Work[NoKeys], payload: Model, personal: Nothing) -> tuple[Model, Nothing]:
    """ClientUpdate: SGD on the client's loss from the received weights."""
    return Model(descend(work.task.loss, payload.w, work.batches, work.sgd)), personal


def predictor(work: Work[NoKeys], payload: Model, personal: Nothing) -> Tree:
    """The shared model: nothing is personal."""
    return payload.w


SCHEME = Scheme(
    name="fedavg",
    title="Federated averaging",
    paper="McMahan et al. 2017, algorithm 1",
    shares="w_i, the client's weights after its local steps",
    keeps="nothing",
    weights="examples",
    local_update=local_update,
    predictor=predictor,
)
