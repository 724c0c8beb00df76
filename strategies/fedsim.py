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
from dataclasses import dataclass
from typing import NamedTuple

from bouquet.core.config import key
from bouquet.core.scheme import Model, Round, Scheme, Upload, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, norm


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


def tuned(work: Work, parts: Parts, batches: Sequence[Batch], lr: float = 0.0) -> Tree:
    """The personal part after steps on it with the shared part fixed."""
    return work.descend(
        lambda p, batch: work.task.loss(merge(p), batch), parts, batches,
        hold=("u",), rates={"v": lr or work.sgd.lr},
    ).v  # fmt: skip


@dataclass(frozen=True)
class Partial(Scheme[Personal, Model, Upload, Model]):
    """What schemes that split a model have in common."""

    keeps = "v_i, the personal parameters"
    weights = "examples"
    kind = "partial"
    clips = "all"

    personal_lr: float = key(0.0, "step size of the personal part; 0 = lr", low=0.0, step=True)
    stateless: bool = key(False, "start the personal part anew at every participation")

    def personal_part(self, split: str) -> str:
        """What ``personal.split`` says."""
        return split

    def init_personal(self, task: Task, examples: int) -> Personal:
        """V starts where everyone's does."""
        return Personal(split(task, task.initial).v)

    def init_server(self, task: Task) -> Model:
        """The server holds the shared part only."""
        return Model(split(task, task.initial).u)

    def downlink(self, server: Model, clients: Sequence[str]) -> Model:
        """The shared part as it is."""
        return server

    def shared(self, task: Task, payload: Model) -> Tree:
        """The shared part as a client without training would complete it."""
        return merge(Parts(payload.w, split(task, task.initial).v))

    def start(self, work: Work, payload: Model, personal: Personal) -> Parts:
        """Where a client's round starts."""
        fresh = split(work.task, work.task.initial).v
        return Parts(payload.w, fresh if self.stateless else personal.v)

    def begins_at(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """A client's loss is f_i(u, v_i), with the v_i its round starts from."""
        return merge(self.start(work, payload, personal))

    def newcomer(self, work: Work, payload: Model, shared: Tree) -> Tree:
        """U stays as it is, and v takes its steps from where everyone's started."""
        parts = split(work.task, shared)
        return merge(Parts(parts.u, tuned(work, parts, work.batches, self.personal_lr)))

    def predictor(self, work: Work, payload: Model, personal: Personal) -> Tree:
        """The shared part completed by the client's own."""
        return merge(Parts(payload.w, personal.v))

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """The size of the personal part."""
        return {"personal_norm": norm(personal.v)}


@dataclass(frozen=True)
class FedSim(Partial[Model]):
    """Partial personalization, both parts at once."""

    name = "fedsim"
    title = "Partial personalization, both parts at once"
    paper = "Pillutla et al. 2022, algorithms 1 and 2 (LocalSim)"
    shares = "u_i, the shared parameters after its local steps"

    def local_update(
        self, work: Work, payload: Model, personal: Personal
    ) -> tuple[Model, Personal]:
        """τ joint steps."""
        u, v = work.descend(
            lambda parts, batch: work.task.loss(merge(parts), batch),
            self.start(work, payload, personal),
            work.batches,
            rates={"v": self.personal_lr or work.sgd.lr},
        )
        return Model(u), Personal(v)

    def upload_like(self, server: Model) -> Model:
        """An upload is a shared part."""
        return server

    def aggregate(self, server: Model, uploads: Round[Model]) -> Model:
        """The mean of the shared parts."""
        return uploads.mean
