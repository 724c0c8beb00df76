"""FedBN: batch norm stays at home, all else is averaged.

Li, Jiang, Zhang, Kamp and Dou (2021), *FedBN: federated learning on non-IID features via local
batch normalization*, algorithm 1.

====================  ====================================================
paper                 here
====================  ====================================================
w_k, of other layers  ``payload.w``, then ``upload.w``
w_k, of BN layers     ``personal.v``: their γ, β and running statistics
====================  ====================================================

That is FedSim whose split is the batch-norm layers. A model without any has nothing personal, and
FedBN is FedAvg.
"""

from dataclasses import dataclass

from bouquet.models.splits import BATCH_NORM
from bouquet.strategies.fedsim import FedSim


@dataclass(frozen=True)
class FedBN(FedSim):
    """FedAvg with personal batch norm."""

    name = "fedbn"
    title = "FedAvg with personal batch norm"
    paper = "Li et al. 2021, algorithm 1"
    shares = "w_i without its batch-norm layers, after its local steps"
    keeps = "weights and running statistics of its batch-norm layers"

    def personal_part(self, split: str) -> str:
        """The batch-norm layers, whatever ``personal.split`` says."""
        return BATCH_NORM
