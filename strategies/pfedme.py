"""pFedMe: personal models through Moreau envelopes.

Dinh, Tran and Nguyen (2020), *Personalized federated learning with Moreau envelopes*,
algorithm 1.

====================  ==================================================
paper                 here
====================  ==================================================
w^t, w_i              ``payload.w``, then ``upload.w``
θ_i                   ``personal.theta``; the first time it starts at w
λ                     ``pfedme.lambda``
η                     ``sgd.lr``, the step of w_i
K                     ``pfedme.inner-steps``, gradient steps on θ
β                     ``pfedme.beta``, at the server
====================  ==================================================

Each local step draws a batch, takes K gradient steps on f(θ) + (λ/2) ‖θ − w_i‖² from the
last θ, and moves w_i by −η λ (w_i − θ), the gradient of the envelope. No batch passes through
w_i, so its running statistics are θ's.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.config import MOST_STEPS, key
from bouquet.core.scheme import Averaging, Model, Round, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, distance, half_square, norm, toward, without_statistics


class Personal(NamedTuple):
    """What stays on the device: θ, and whether there has been one yet."""

    theta: Tree
    begun: Tensor

    def or_else(self, w: Tree) -> Tree:
        """θ; before the first round w."""
        return {n: torch.where(self.begun > 0, value, w[n]) for n, value in self.theta.items()}


@dataclass(frozen=True)
class PFedMe(Averaging[Personal]):
    """Personalized federated learning with Moreau envelopes."""

    name = "pfedme"
    title = "Personalized federated learning with Moreau envelopes"
    paper = "Dinh, Tran and Nguyen 2020, algorithm 1"
    shares = "w_i, the client's copy of the shared weights after its local steps"
    keeps = "theta_i, its own weights"
    derivable = (
        "theta_i, in a round of one local step, w - (w - w_i) / (lr lambda), or where lr lambda is "
        "1, for then it is w_i"
    )
    plain = "whose w_i takes the envelope's gradient step, -lr lambda (w_i - theta)"

    strength: float = key(
        15.0,
        "pull of the personal model towards w",
        name="lambda",
        low=0.0,
        open_low=True,
        step=True,
    )
    inner_steps: int = key(
        5, "gradient steps on the personal model in a local step", low=1, high=MOST_STEPS
    )
    inner_lr: float = key(0.05, "their step size", low=0.0, open_low=True, step=True)
    beta: float = key(
        1.0, "how far the server moves to the mean", low=0.0, degenerate="1 takes the mean"
    )

    def init_personal(self, task: Task, examples: int) -> Personal:
        """Nothing yet: the first round starts θ at the received w."""
        zeros = {name: torch.zeros_like(value) for name, value in task.initial.items()}
        return Personal(zeros, torch.zeros(()))

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """θ follows the envelope's inner problem, w_i the envelope."""
        w, theta = payload.w, personal.or_else(payload.w)
        for batch in work.batches:
            theta = self.solved(work, theta, w, batch)
            step = work.rate(batch) * self.strength * batch.active
            w = theta | {n: v - step * (v - theta[n]) for n, v in without_statistics(w).items()}
        return Model(w), Personal(theta, torch.ones_like(personal.begun))

    def solved(self, work: Work, theta: Tree, centre: Tree, batch: Batch) -> Tree:
        """K gradient steps on f(θ) + (λ/2) ‖θ − w_i‖²."""

        def objective(theta: Tree, batch: Batch) -> Tensor:
            return work.task.loss(theta, batch) + self.strength * half_square(theta, centre)

        return work.descend(objective, theta, [batch] * self.inner_steps, lr=self.inner_lr)

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """θ follows the inner problem around the frozen w."""
        theta = shared
        for batch in work.batches:
            theta = self.solved(work, theta, shared, batch)
        return theta

    def aggregate(self, server: Model, uploads: Round[Model]) -> Model:
        """w ← (1 − β) w + β mean, exactly the mean at β = 1."""
        return Model(toward(server.w, uploads.mean.w, self.beta))

    def predictor(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """θ; before the first round the received w."""
        return personal.or_else(payload.w)

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """The size of θ and its distance from the shared model."""
        return {"personal_norm": norm(personal.theta), "drift": distance(personal.theta, shared)}
