"""LG-FedAvg: the first layers are the client's own, the last ones everybody's.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency (2020), *Think locally, act
globally: federated learning with local and global representations*, algorithm 1.

====================  ========================================================
paper                 here
====================  ========================================================
θ^g                   ``payload.w``, then ``upload.w``: the global model on top
θ_m^ℓ                 ``personal.v``: the local model, which reads the input
η                     ``sgd.lr``, for both parts
N_m / N               the uploads' weights (``examples``)
====================  ========================================================

Both parts take joint steps on the loss of the whole, which is FedSim
(:mod:`bouquet.strategies.fedsim`) with the layers on the input's side personal. How many those are
is a choice in the paper: one of four on MNIST, which is the default, ``input``; for the network of
two convolutions ``lg-fedavg.split = "conv*"``. The authors start from a model of FedAvg's, as
``pipeline = "fedavg:100 lg-fedavg:50"`` does. Their losses that make the local representation
fair, or good for other tasks, are not here.
"""

from dataclasses import dataclass

from bouquet.core.config import key
from bouquet.strategies.fedsim import FedSim


@dataclass(frozen=True)
class LGFedAvg(FedSim):
    """Local and global representations."""

    name = "lg-fedavg"
    title = "Local and global representations"
    paper = "Liang et al. 2020, algorithm 1"
    shares = "the layers on the output's side after its local steps"
    keeps = "the layers on the input's side, its own representation"

    split: str = key(
        "input",
        "the parameters that are personal, as in personal.split",
        degenerate="'none' is FedAvg",
    )

    def personal_part(self, split: str) -> str:
        """The client's own representation."""
        return self.split
