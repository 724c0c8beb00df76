"""What a client works with in a round, and the one way it takes gradient steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from bouquet.core.descent import Sgd, Step, descend
from bouquet.core.optimizers import Memory
from bouquet.core.statistics import Followed
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree

Point = TypeVar("Point", bound=Tree | tuple[Any, ...])
S = TypeVar("S", bound=Step)


@dataclass(frozen=True)
class Work:
    """What a client is given to work with in a round.

    Parameters
    ----------
    task : Task
        Model and loss.
    sgd : Sgd
        Step size and its kin.
    batches : sequence of Batch
        The round's minibatches: as many as the scheme draws, else one a local step.
    steps : int
        Local steps; 0 where passes over the data are counted instead.
    round : int
        The round's number, from 1.
    luck : float
        A number from 0 to 1, drawn anew for every client and round, for schemes whose
        clients do a random part of the work. Clients that train together have the same.
    watch : callable, optional
        Told of every step: the points before and after it, and its batch.
    memory : Memory, optional
        What the local optimizer remembers of the client's steps; without, every stretch of steps
        begins anew.
    data : sequence of Batch
        The part of the client's training data that the scheme looks through, each example once.
    """

    task: Task
    sgd: Sgd
    batches: Sequence[Batch]
    steps: int = 0
    round: int = 1
    luck: float = 0.0
    watch: Callable[[Any, Any, Any], None] | None = None
    memory: Memory | None = None
    data: Sequence[Batch] = ()

    def rate(self, batch: Batch) -> float | Tensor:
        """The step size of a batch's step."""
        if not self.sgd.paced:
            return self.sgd.lr
        return self.sgd.lr * batch.pace.to(batch.active.dtype)

    @property
    def reach(self) -> Tensor:
        """The sum of the step sizes of the steps that the client really takes."""
        sizes = [b.active * b.pace if self.sgd.paced else b.active for b in self.batches]
        return self.sgd.lr * torch.stack(sizes).sum()

    @property
    def local_batches(self) -> Sequence[Batch]:
        """The batches of the local steps, where a scheme draws more."""
        return self.batches[: self.steps] if self.steps else self.batches

    def some_batches(self, steps: int) -> Sequence[Batch]:
        """The first so many batches; 0 for those of the local steps."""
        return self.batches[:steps] if steps else self.local_batches

    def loss_on_data(self, params: Tree) -> Tensor:
        """A model's mean loss over the examples of ``data``, as when it is used."""
        losses = [self.task.losses(params, batch.x, batch.y)[0] for batch in self.data]
        real = [(b.weight > 0).to(loss.dtype) for b, loss in zip(self.data, losses, strict=True)]
        total = torch.stack([loss @ one for loss, one in zip(losses, real, strict=True)]).sum()
        return total / torch.stack([one.sum() for one in real]).sum()

    def descend(
        self,
        objective: Callable[[Point, S], Tensor],
        point: Point,
        batches: Sequence[S],
        *,
        lr: float = 0.0,
        rates: Mapping[str, float] | None = None,
        hold: Sequence[str] = (),
        project: Callable[[Point], Point] | None = None,
        part: str = "w",
    ) -> Point:
        """Take a gradient step for each batch, all parts moving from the same point.

        Parameters
        ----------
        objective : callable
            Of a point and a batch; autograd differentiates it in all that moves.
        point : Tree, or a record of trees and tensors
            Where to start; left untouched.
        batches : sequence
            One a step.
        lr : float
            Step size; 0 for the run's.
        rates : mapping of str to float, optional
            Step sizes of single fields of a record.
        hold : sequence of str
            Fields of a record that rest.
        project : callable, optional
            Applied after every step, for example to stay in [0, 1].
        part : str
            What a tree that moves alone is called, where a round moves several in turn.
        """
        sgd = replace(self.sgd, lr=lr) if lr else self.sgd
        if self.task.statistics:
            followed = Followed(objective, project)
            objective, project = followed.objective, followed.project
        if isinstance(point, dict):
            moving: Any = None
        else:
            moving = tuple(name for name in point._fields if name not in hold)  # type: ignore[attr-defined]
        memory = self.memory or Memory(sgd.optimizer)
        stretches = [batches] if self.watch is None else [[batch] for batch in batches]
        for stretch in stretches:
            before = point
            point = descend(
                objective,
                point,
                stretch,
                sgd,
                moving=moving,
                rates=rates,
                project=project,
                part=part,
                memory=memory,
            )
            if self.watch is not None:
                self.watch(before, point, stretch[0])
        return point
