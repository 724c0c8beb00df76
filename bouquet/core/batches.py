"""The minibatches of a round, for one client or a cohort of unequal ones.

A client goes through its data in a random order, batch by batch, and starts over
in a new order when it is through; the last batch of a pass may be smaller. Which
examples a client sees depends on the seed, its id and the round alone, never on
who trains beside it: in a cohort, short batches and missing steps are padded.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.seeding import generator
from bouquet.core.task import Batch

S = TypeVar("S")


@dataclass(frozen=True)
class Plan:
    """How much local work a round is.

    Parameters
    ----------
    steps, epochs : int
        Gradient steps, or passes over the data; the other is 0.
    batch_size : int
        Examples in a step; 0 for all.
    draws : callable
        From local steps to batches, for schemes that draw more than one a step.
    chance : bool
        Whether every step needs a seed, because the model draws at random.
    paired : bool
        Whether an example that would be a batch of its own joins the batch before it.
    share : float
        The share of a client's examples, rounded up, that a pass goes through.
    """

    steps: int
    epochs: int
    batch_size: int
    draws: Callable[[int], int] = lambda steps: steps
    chance: bool = False
    paired: bool = False
    share: float = 1.0

    def local_steps(self, count: int) -> int:
        """The local steps of a client with so many examples."""
        return self.steps or self.epochs * self.per_pass(count)

    def per_pass(self, count: int) -> int:
        """The batches in which it goes through its examples once."""
        left_alone = self.paired and count % self.size(count) == 1
        return math.ceil(count / self.size(count)) - left_alone

    def size(self, count: int) -> int:
        """How many of its examples are in its full batches."""
        return min(self.batch_size or count, count)


class Draw(NamedTuple):
    """The examples a cohort sees, by client, step and place in the batch.

    ``examples`` are positions in the data, ``own`` positions among the client's own, ``chance``
    a seed for each step.
    """

    examples: Tensor
    own: Tensor
    weight: Tensor
    active: Tensor
    chance: Tensor


def draw(
    clients: Sequence[str],
    train: Sequence[Tensor],
    plan: Plan,
    seeds: tuple[int | str, ...],
    dtype: torch.dtype,
) -> Draw:
    """Choose a round's examples for each client.

    Parameters
    ----------
    clients : sequence of str
        Their ids.
    train : sequence of Tensor
        Each one's training examples, as positions in the data.
    plan : Plan
        How much work.
    seeds : tuple of int and str
        The seed, the purpose and the round: with the client's id, all that the choice
        depends on.
    dtype : torch.dtype
        Of the weights.
    """
    tables = [
        _table(len(own), plan, generator(*seeds, client))
        for client, own in zip(clients, train, strict=True)
    ]
    shape = (len(tables), max(len(t) for t in tables), max(t.shape[1] for t in tables))
    index = np.full(shape, -1)
    for row, table in zip(index, tables, strict=True):
        row[: len(table), : table.shape[1]] = table
    real = torch.from_numpy(index >= 0)
    count = real.sum(dim=2)
    # Padding repeats the client's first example: nobody's loss is computed on others' data.
    own = torch.from_numpy(index).clamp(min=0)
    return Draw(
        examples=torch.stack([mine.take(place) for mine, place in zip(train, own, strict=True)]),
        own=own,
        weight=real.to(dtype) / count.clamp(min=1).unsqueeze(2).to(dtype),
        active=(count > 0).to(dtype),
        chance=_chance(clients, shape[1], seeds) if plan.chance else torch.zeros_like(count),
    )


def _chance(clients: Sequence[str], steps: int, seeds: tuple[int | str, ...]) -> Tensor:
    """A seed for each client's every step; those of the first steps do not depend on how many."""
    drawn = [generator(*seeds, client, "chance").integers(2**63, size=steps) for client in clients]
    return torch.from_numpy(np.stack(drawn))


def _table(held: int, plan: Plan, rng: np.random.Generator) -> NDArray[np.int64]:
    """A client's examples by step and place; places a short batch leaves empty are -1."""
    count = share_of(held, plan.share)
    size = plan.size(count)
    per_pass = plan.per_pass(count)
    steps = plan.draws(plan.local_steps(count))
    if size == held:  # full batches: there is no order to choose
        return np.broadcast_to(np.arange(count), (steps, size))
    if per_pass * size < count:
        return _paired(held, count, size, steps, rng)
    passes = math.ceil(steps / per_pass)
    order = np.full((passes, per_pass * size), -1)
    for row in order:
        row[:count] = rng.permutation(held)[:count]
    return order.reshape(-1, size)[:steps]


def _paired(
    held: int, count: int, size: int, steps: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The same, where the last example of a pass joins the batch before it."""
    passes = math.ceil(steps / (count // size))
    table = np.full((passes, count // size, size + 1), -1)
    for rows in table:
        order = rng.permutation(held)[:count]
        rows[:, :size], rows[-1, size] = order[:-1].reshape(-1, size), order[-1]
    return table.reshape(-1, size + 1)[:steps]


def share_of(held: int, share: float) -> int:
    """How many examples a share of them is, rounded up."""
    return math.ceil(share * held - 1e-9)  # 0.1 * 30 is a little more than 3


def gather(x: Tensor, y: Tensor, drawn: Draw) -> Batch:
    """The drawn examples themselves, with the axes client, step, place."""
    there = x.device
    chosen = drawn.examples.to(there)
    weight, active, own = (part.to(there) for part in (drawn.weight, drawn.active, drawn.own))
    # Seeds stay where Python reads them.
    return Batch(
        chosen_of(x, chosen),
        chosen_of(y, chosen),
        weight,
        active,
        own,
        drawn.chance,
        torch.ones_like(active),
    )


def paces(taken: Sequence[int], batches: int, a_step: int, decay: float) -> Tensor:
    """1 / (1 + d t) for each client's batches, t the steps its stage has had before.

    Parameters
    ----------
    taken : sequence of int
        Each client's steps before its first batch.
    batches : int
        How many follow.
    a_step : int
        How many of them are one step's.
    decay : float
        d.
    """
    ahead = torch.arange(batches, dtype=torch.float64) // a_step
    return 1 / (1 + decay * (torch.tensor(taken, dtype=torch.float64).unsqueeze(1) + ahead))


def chosen_of(values: Tensor, places: Tensor) -> Tensor:
    """``values[places]``, several times as fast."""
    return values.index_select(0, places.reshape(-1)).reshape(*places.shape, *values.shape[1:])


def steps(batches: Batch) -> "Steps[Batch]":
    """One client's batches, step by step."""
    return Steps(batches, len(batches.active))


class Steps(Sequence[S]):
    """Batches, one a step, kept as one record whose tensors have an axis of steps in front.

    Parameters
    ----------
    stacked : record
        A batch, or a record of several, with that axis.
    count : int
        How many steps there are.
    """

    def __init__(self, stacked: S, count: int) -> None:
        self.stacked, self._count = stacked, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> S: ...

    @overload
    def __getitem__(self, place: slice) -> "Steps[S]": ...

    def __getitem__(self, place: int | slice) -> "S | Steps[S]":
        count = range(self._count)[place]  # an IndexError past the end, by which iteration stops
        one: S = _each(lambda tensor: tensor[place], self.stacked)
        return one if isinstance(count, int) else Steps(one, len(count))


def in_one(batches: Sequence[S]) -> S:
    """The batches of all steps as one record, with an axis of steps in front."""
    if isinstance(batches, Steps):
        return cast(S, batches.stacked)
    first, count = batches[0], len(batches)
    if all(batch is first for batch in batches):
        return cast(S, _each(lambda tensor: tensor.expand(count, *tensor.shape), first))
    return cast(S, _each(lambda *tensors: torch.stack(tensors), *batches))


def side_by_side(record: Callable[..., S], *parts: Sequence[Any]) -> Sequence[S]:
    """Several batches a step, put into a record each."""
    if all(isinstance(part, Steps) for part in parts):
        return Steps(record(*map(in_one, parts)), len(parts[0]))
    return [record(*step) for step in zip(*parts, strict=True)]


def _each(change: Callable[..., Tensor], *records: Any) -> Any:
    """Records changed tensor by tensor."""
    first = records[0]
    if isinstance(first, Tensor):
        return change(*records)
    parts = [_each(change, *same) for same in zip(*records, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
