"""FedPer: the last layers are the client's own.

Arivazhagan, Aggarwal, Singh and Choudhary (2019), *Federated learning with personalization
layers*, algorithms 1 (client) and 2 (server).

====================  ========================================================
paper                 here
====================  ========================================================
W_B                   ``payload.w``, then ``upload.w``: the base layers
W_Pj                  ``personal.v``: the personalization layers
η_j                   ``sgd.lr``, for both parts
γ_j = n_j / Σ n_j     the uploads' weights (``examples``)
====================  ========================================================

Both parts take the same steps of SGD, which is FedSim (:mod:`bouquet.strategies.fedsim`) with
``personal.split = output``. The paper also makes the last blocks before it personal (K_P of them);
a pattern such as ``personal.split = "layer4.* output.*"`` does.
"""

from dataclasses import dataclass

from bouquet.strategies.fedsim import FedSim


@dataclass(frozen=True)
class FedPer(FedSim):
    """Federated learning with personalization layers."""

    name = "fedper"
    title = "Federated learning with personalization layers"
    paper = "Arivazhagan et al. 2019, algorithms 1 and 2"
    shares = "the base layers after its local steps"
    keeps = "the personalization layers: what personal.split says, else the output layer"
