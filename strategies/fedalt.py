"""FedAlt: first the personal parameters move, then the shared ones.

Pillutla et al. (2022), *Federated learning with partial model personalization*,
algorithm 1 with LocalAlt (algorithm 3); the symbols are those of
:mod:`bouquet.strategies.fedsim`.

====================  ====================================================
paper                 here
====================  ====================================================
τ_v                   ``fedalt.personal-steps``, on v with u as received
τ_u                   local steps, on u with the new v
γ_v                   ``fedalt.personal-lr``
====================  ====================================================
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bouquet.core.config import MOST_STEPS, key
from bouquet.core.scheme import Model, Work
from bouquet.core.task import Batch
from bouquet.strategies.fedsim import FedSim, Parts, Personal, merge, tuned


def alternated(
    work: Work, start: Parts, own: Sequence[Batch], shared: Sequence[Batch], lr: float = 0.0
) -> tuple[Model, Personal]:
    """Steps on v with u as it is, by default at the run's rate, then on u with the new v."""
    u, _ = start
    v = tuned(work, start, own, lr)
    moved = work.descend(
        lambda parts, batch: work.task.loss(merge(parts), batch),
        Parts(u, v),
        shared,
        hold=("v",),
    )
    return Model(moved.u), Personal(v)


@dataclass(frozen=True)
class FedAlt(FedSim):
    """Partial personalization, one part after the other."""

    name = "fedalt"
    title = "Partial personalization, one part after the other"
    paper = "Pillutla et al. 2022, algorithms 1 and 3 (LocalAlt)"

    personal_steps: int = key(
        0, "steps of the personal part; 0 = local-steps", low=0, high=MOST_STEPS
    )

    def draws(self, steps: int) -> int:
        """Batches for whichever part takes more steps."""
        return max(steps, self.personal_steps)

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """τ_v steps on v, then τ_u steps on u."""
        own = work.some_batches(self.personal_steps)
        start = self.start(work, payload, personal)
        return alternated(work, start, own, work.local_batches, self.personal_lr)
