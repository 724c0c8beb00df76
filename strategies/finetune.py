"""Finetune: FedAvg, and before a client predicts, steps on its own data.

The baseline every personalization method is compared with ("FedAvg + fine-tuning"). With
``finetune.split`` only part of the model is tuned: "FT (part.)" of Pillutla et al. (2022).
"""

from dataclasses import dataclass

from strategies.core.config import MOST_STEPS, key
from strategies.core.scheme import Model, Scheme, Work
from strategies.core.trees import Nothing, Tree
from strategies.fedavg import local_update
from strategies.fedsim import Parts, merge, split, tuned


@dataclass(frozen=True)
class Config:
    """Finetune's keys."""

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


def adapts(config: Config) -> int:
    """A batch of its own training data for each step."""
    return config.steps


def predictor(work: Work[Config], payload: Model, personal: Nothing) -> Tree:
    """The shared model after the client's own steps on the part it tunes."""
    return newcomer(work, payload, payload.w)


def newcomer(work: Work[Config], payload: Model, shared: Tree) -> Tree:
    """The same for a newcomer, who has nothing but the shared model."""
    parts = split(work.task, shared)
    return merge(Parts(parts.u, tuned(work.task, parts, work.batches, work.sgd)))


SCHEME = Scheme(
    name="finetune",
    title="FedAvg and fine-tuning",
    paper="baseline",
    shares="w_i, the client's weights after its local steps",
    keeps="nothing; it tunes the received weights to its data when it predicts",
    weights="examples",
    config=Config,
    local_update=local_update,
    adapts=adapts,
    predictor=predictor,
    newcomer=newcomer,
)
