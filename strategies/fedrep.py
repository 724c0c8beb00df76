"""FedRep: many steps on the client's own head, then one on everybody's representation.

Collins, Hassani, Mokhtari and Shakkottai (2021), *Exploiting shared representations for
personalized federated learning*, algorithm 1.

====================  ==========================================================
paper                 here
====================  ==========================================================
φ^t                   ``payload.w``, then ``upload.w``: the representation
h_i^t                 ``personal.v``: the head, which ``personal.split`` chooses
α                     ``sgd.lr``
τ                     ``fedrep.head-steps``, for each local step on φ
r n                   clients in a round; their mean is uniform
====================  ==========================================================

Algorithm 1 takes τ steps on h with φ as received, then one on φ with the new h; the experiments
take ten passes over the data on h and then one on φ. Here a round has ``local-steps`` (or
``local-epochs``) on φ after ``head-steps`` times as many on h, and φ steps on every τ-th of the
batches that h has seen: ``local-steps = 1`` is algorithm 1, ``local-epochs = 1`` with 10 the
experiments'. With ``head-steps = 1`` it is FedAlt (:mod:`bouquet.strategies.fedalt`) with a
uniform mean.
"""

from dataclasses import dataclass

from bouquet.core.config import MOST_STEPS, key
from bouquet.core.scheme import Model, Work
from bouquet.strategies.fedalt import alternated
from bouquet.strategies.fedsim import FedSim, Personal


@dataclass(frozen=True)
class FedRep(FedSim):
    """Federated representation learning."""

    name = "fedrep"
    title = "Federated representation learning"
    paper = "Collins et al. 2021, algorithm 1"
    shares = "the representation after its local steps"
    keeps = "the head: what personal.split says, else the output layer"
    weights = "uniform"

    head_steps: int = key(
        10,
        "steps on the head for each local step, which is one on the representation",
        low=1,
        high=MOST_STEPS,
        degenerate="1 is FedAlt with weights uniform",
    )

    def draws(self, steps: int) -> int:
        """A batch for every step on the head."""
        return self.head_steps * steps

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """All steps on h, then those on φ."""
        start = self.start(work, payload, personal)
        # In a cohort a client's own batches come first: of those, every τ-th are as many as it
        # has local steps.
        shared = work.batches[:: self.head_steps]
        return alternated(work, start, work.batches, shared, self.personal_lr)
