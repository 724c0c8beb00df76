"""Finetune: FedAvg, and before a client predicts, steps on its own data.

The baseline every personalization method is compared with ("FedAvg + fine-tuning"). With
``finetune.split`` only part of the model is tuned: "FT (part.)" of Pillutla et al. (2022).
"""

from dataclasses import dataclass

from bouquet.core.config import MOST_STEPS, key
from bouquet.core.scheme import Model, Work
from bouquet.core.trees import Nothing, Tree
from bouquet.strategies.fedavg import FedAvg
from bouquet.strategies.fedsim import Parts, merge, split, tuned


@dataclass(frozen=True)
class Finetune(FedAvg):
    """FedAvg and fine-tuning."""

    name = "finetune"
    title = "FedAvg and fine-tuning"
    paper = "baseline"
    keeps = "nothing; it tunes the received weights to its data when it predicts"
    later = "tune"

    steps: int = key(
        10,
        "steps a client takes before it predicts",
        low=0,
        high=MOST_STEPS,
        degenerate="0 is FedAvg",
    )
    split: str = key(
        "full", "the parameters it tunes, as in personal.split", degenerate="'none' is FedAvg"
    )

    def personal_part(self, split: str) -> str:
        """What it tunes."""
        return self.split

    def adapts(self) -> int:
        """A batch of its own training data for each step."""
        return self.steps

    def predictor(self, work: Work, payload: Model, personal: Nothing) -> Tree:
        """The shared model after the client's own steps on the part it tunes."""
        return self.newcomer(work, payload, payload.w)

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """The same for a newcomer, who has nothing but the shared model."""
        parts = split(work.task, shared)
        return merge(Parts(parts.u, tuned(work, parts, work.batches)))
