"""Ditto: a personal model held near the shared one.

Li et al. (2021), *Ditto: fair and robust federated learning through personalization*,
algorithm 1, with FedAvg as the solver of the shared model.

====================  ==============================================
paper                 here
====================  ==============================================
w^t                   ``payload.w``, as received this round
v_k                   ``personal.v``, starts at the initial w
λ                     ``ditto.lambda``
s                     ``ditto.personal-steps``
====================  ==============================================
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from bouquet.core.config import MOST_STEPS, key
from bouquet.core.scheme import Averaging, Model, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, distance, half_square, norm


class Personal(NamedTuple):
    """What stays on the device."""

    v: Tree


@dataclass(frozen=True)
class Ditto(Averaging[Personal]):
    """Ditto."""

    name = "ditto"
    title = "Ditto"
    paper = "Li et al. 2021, algorithm 1"
    shares = "w_i, the client's copy of the shared weights after its local steps"
    keeps = "v_i, its own weights"

    strength: float = key(
        0.1,
        "pull of the personal model towards the shared one",
        name="lambda",
        low=0.0,
        degenerate="0 is Local",
        step=True,
    )
    personal_steps: int = key(
        0, "steps of the personal model; 0 = local-steps", low=0, high=MOST_STEPS
    )

    def init_personal(self, task: Task, examples: int) -> Personal:
        """V starts at the initial w."""
        return Personal(task.initial)

    def draws(self, steps: int) -> int:
        """Batches for whichever half takes more steps."""
        return max(steps, self.personal_steps)

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """FedAvg's steps on w, and s steps on v."""
        w = work.descend(work.task.loss, payload.w, work.local_batches)
        own = work.some_batches(self.personal_steps)
        return Model(w), Personal(self.pulled(work, personal.v, payload.w, own))

    def pulled(self, work: Work, v: Tree, centre: Tree, batches: Sequence[Batch]) -> Tree:
        """Steps on f(v) + (λ/2) ‖v − w^t‖²."""

        def objective(v: Tree, batch: Batch) -> Tensor:
            return work.task.loss(v, batch) + self.strength * half_square(v, centre)

        return work.descend(objective, v, batches, part="v")

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """V starts at the shared model and is held near it."""
        return self.pulled(work, shared, shared, work.batches)

    def predictor(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """The personal model v."""
        return personal.v

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """The size of the personal model and its distance from the shared one."""
        return {"personal_norm": norm(personal.v), "drift": distance(personal.v, shared)}
