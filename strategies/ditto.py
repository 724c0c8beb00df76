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

from strategies.core.config import MOST_STEPS, key
from strategies.core.descent import descend
from strategies.core.scheme import Model, Scheme, Work
from strategies.core.task import Batch, Task
from strategies.core.trees import Tree, distance, half_square, norm


@dataclass(frozen=True)
class Config:
    """Ditto's keys."""

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


class Personal(NamedTuple):
    """What stays on the device."""

    v: Tree


def init_personal(config: Config, task: Task, examples: int) -> Personal:
    """v starts at the initial w."""
    return Personal(task.initial)


def draws(config: Config, steps: int) -> int:
    """Batches for whichever half takes more steps."""
    return max(steps, config.personal_steps)


def local_update(work: Work[Config], payload: Model, personal: Personal) -> tuple[Model, Personal]:
    """FedAvg's steps on w, and s steps on v."""
    config = work.config
    w = descend(work.task.loss, payload.w, work.local_batches, work.sgd)
    own = work.batches[: config.personal_steps] if config.personal_steps else work.local_batches
    return Model(w), Personal(pulled(work, personal.v, payload.w, own))


def pulled(work: Work[Config], v: Tree, centre: Tree, batches: Sequence[Batch]) -> Tree:
    """Steps on f(v) + (λ/2) ‖v − w^t‖²."""

    def objective(v: Tree, batch: Batch) -> Tensor:
        return work.task.loss(v, batch) + work.config.strength * half_square(v, centre)

    return descend(objective, v, batches, work.sgd)


def newcomer(work: Work[Config], payload: Model, shared: Tree) -> Tree:
    """v starts at the shared model and is held near it."""
    return pulled(work, shared, shared, work.batches)


def predictor(work: Work[Config], payload: Model, personal: Personal) -> Tree:
    """The personal model v."""
    return personal.v


def diagnostics(personal: Personal, shared: Tree) -> Tree:
    """The size of the personal model and its distance from the shared one."""
    return {"personal_norm": norm(personal.v), "drift": distance(personal.v, shared)}


SCHEME = Scheme(
    name="ditto",
    title="Ditto",
    paper="Li et al. 2021, algorithm 1",
    shares="w_i, the client's copy of the shared weights after its local steps",
    keeps="v_i, its own weights",
    config=Config,
    personal=Personal,
    draws=draws,
    init_personal=init_personal,
    local_update=local_update,
    predictor=predictor,
    newcomer=newcomer,
    diagnostics=diagnostics,
)
