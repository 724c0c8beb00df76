"""Centralized: one learner that has everybody's data, the reference from above.

Not federated at all: a simulation pools the clients' training data and trains on it as one
client would. Every client is then judged on its own test data as ever.
"""

from dataclasses import dataclass

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Federation
from bouquet.strategies.fedavg import FedAvg


@dataclass(frozen=True)
class Centralized(FedAvg):
    """FedAvg with a single client, who has everything."""

    name = "centralized"
    title = "Training on all data in one place"
    paper = "baseline: no federation"
    shares = "everything: the clients' data themselves"
    exception = "the data are in one place by definition; simulations only"
    pooled = True

    def advise(self, federation: Federation) -> str:
        """There are no clients to sample."""
        if federation.sampled:
            raise BadInput(
                "clients-per-round must be 0 for centralized, which has everybody's data in one "
                f"place, not {federation.sampled}."
            )
        return ""
