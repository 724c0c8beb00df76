"""FedSim: shared and personal parameters move together.

Pillutla et al. (2022), *Federated learning with partial model personalization*,
algorithm 1 with LocalSim (algorithm 2).

====================  ====================================================
paper                 here
====================  ====================================================
u                     ``payload.w``, then ``upload.w``: the shared names
v_i                   ``personal.v``: the names ``personal.split`` chooses
γ_u, γ_v              ``sgd.lr``, ``fedsim.personal-lr``
τ                     local steps
====================  ====================================================

A local step is one joint gradient step on f(u, v), both parts from the same point. Gradients are
clipped as the authors clip them, by the norm over u and v together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strategies.core.config import key
from strategies.core.descent import Sgd, descend
from strategies.core.scheme import Model, Scheme, Work
from strategies.core.task import Batch, Task
from strategies.core.trees import Tree, norm


@dataclass(frozen=True)
class Config:
    """FedSim's keys."""

    personal_lr: float = key(0.0, "step size of the personal part; 0 = lr", low=0.0, step=True)
    stateless: bool = key(False, "start the personal part anew at every participation")


class Personal(NamedTuple):
    """What stays on the device."""

    v: Tree


class Parts(NamedTuple):
    """A model in its two parts."""

    u: Tree
    v: Tree


def split(task: Task, whole: Tree) -> Parts:
    """A model's shared and personal parts."""
    return Parts(
        {name: value for name, value in whole.items() if name not in task.personal},
        {name: value for name, value in whole.items() if name in task.personal},
    )


def merge(parts: Parts) -> Tree:
    """The whole model."""
    return {**parts.u, **parts.v}


def init_personal(config: object, task: Task, examples: int) -> Personal:
    """v starts where everyone's does."""
    return Personal(split(task, task.initial).v)


def init_server(config: object, task: Task) -> Model:
    """The server holds the shared part only."""
    return Model(split(task, task.initial).u)


def shared(config: object, task: Task, payload: Model) -> Tree:
    """The shared part as a client without training would complete it."""
    return merge(Parts(payload.w, split(task, task.initial).v))


def start(work: Work[Config], payload: Model, personal: Personal) -> Parts:
    """Where a client's round starts."""
    fresh = work.config.stateless
    return Parts(payload.w, split(work.task, work.task.initial).v if fresh else personal.v)


def begins_at(work: Work[Config], payload: Model, personal: Personal) -> Tree:
    """A client's loss is f_i(u, v_i), with the v_i its round starts from."""
    return merge(start(work, payload, personal))


def local_update(work: Work[Config], payload: Model, personal: Personal) -> tuple[Model, Personal]:
    """τ joint steps."""
    u, v = descend(
        lambda parts, batch: work.task.loss(merge(parts), batch),
        start(work, payload, personal),
        work.batches,
        work.sgd,
        rates=(work.sgd.lr, work.config.personal_lr or work.sgd.lr),
    )
    return Model(u), Personal(v)


def own_steps(work: Work[Config], parts: Parts, batches: Sequence[Batch]) -> Tree:
    """Steps on v with u fixed, of the personal part's size."""
    sgd = replace(work.sgd, lr=work.config.personal_lr or work.sgd.lr)
    return tuned(work.task, parts, batches, sgd)


def tuned(task: Task, parts: Parts, batches: Sequence[Batch], sgd: Sgd) -> Tree:
    """The personal part after steps on it with the shared part fixed."""
    return descend(
        lambda v, batch: task.loss(merge(Parts(parts.u, v)), batch), parts.v, batches, sgd
    )


def newcomer(work: Work[Config], payload: Model, shared: Tree) -> Tree:
    """u stays as it is, and v takes its steps from where everyone's started."""
    parts = split(work.task, shared)
    return merge(Parts(parts.u, own_steps(work, parts, work.batches)))


def predictor(work: Work[object], payload: Model, personal: Personal) -> Tree:
    """The shared part completed by the client's own."""
    return merge(Parts(payload.w, personal.v))


def diagnostics(personal: Personal, shared: Tree) -> Tree:
    """The size of the personal part."""
    return {"personal_norm": norm(personal.v)}


SCHEME = Scheme(
    name="fedsim",
    title="Partial personalization, both parts at once",
    paper="Pillutla et al. 2022, algorithms 1 and 2 (LocalSim)",
    shares="u_i, the shared parameters after its local steps",
    keeps="v_i, the personal parameters",
    weights="examples",
    kind="partial",
    splits=True,
    clips="all",
    config=Config,
    personal=Personal,
    init_personal=init_personal,
    init_server=init_server,
    local_update=local_update,
    predictor=predictor,
    newcomer=newcomer,
    begins_at=begins_at,
    shared=shared,
    diagnostics=diagnostics,
)
