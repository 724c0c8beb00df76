"""Clients of several runs trained together, as one computation.

Runs that differ in numbers alone, such as their step sizes, take the same operations on other
numbers. A cohort has a row for each client; here it has one for each client of each run, and the
numbers that differ are tensors with a row as well. What branches on such a number, or whose steps
are not plain ones, cannot be batched: each run then trains by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import pad

from bouquet.core import cohort
from bouquet.core.batches import steps
from bouquet.core.descent import Sgd, slope, slope_in_vmap
from bouquet.core.scheme import AnyScheme, Work
from bouquet.core.task import Batch
from bouquet.core.trees import Tree, flatten, unflatten
from bouquet.core.work import Point, S

Path = tuple[str, ...]

# Measured: recorded steps of so many clients are as fast as they get, and more of them only fall
# out of the cache.
ENOUGH_RECORDED = 16


class NotAlike(Exception):
    """Runs that cannot train together, and why."""


class Asked(NamedTuple):
    """One run's chunk of clients; see :func:`bouquet.core.cohort.update`."""

    scheme: AnyScheme
    work: Work
    payload: Any
    personal: Any
    batches: Batch
    how: str
    data: tuple[Batch, ...] = ()


def update(asked: Sequence[Asked]) -> list[tuple[Any, Any]]:
    """Several runs' local updates: uploads and new personal states, stacked, for each run.

    Parameters
    ----------
    asked : sequence of Asked
        A chunk of each run's.
    """
    recorded = _check(asked)
    numbers = differences([(one.scheme, one.work.sgd.lr, one.work.luck) for one in asked])
    found: list[tuple[Any, Any]] = []
    for some in _fitting(asked, recorded):
        chosen = {path: [column[place] for place in some] for path, column in numbers.items()}
        found += _update([asked[place] for place in some], chosen)
    return found


def _check(asked: Sequence[Asked]) -> bool:
    """Refuse what differs in more than numbers, or gains nothing; returns if steps are recorded."""
    first = asked[0]
    _, drawn, examples = first.batches.weight.shape
    recorded = cohort.records(first.work.task, first.work.steps or drawn, examples)
    for one in asked:
        task, sgd = one.work.task, one.work.sgd
        if cohort.choice(one.scheme, task, one.how) != "vmap":
            raise NotAlike("clients do not train as one computation")
        like = (first.work.task.kind, first.work.task.fixed_name)
        if task.kind is None or (task.kind, task.fixed_name) != like:
            raise NotAlike("models differ")
        if task.fixed_name != first.work.task.fixed_name:
            raise NotAlike("what is fixed of their models differs")
        plain = replace(sgd, lr=0.0, clip_all=False, gradient=slope, recorded="")
        if plain != Sgd(0.0):
            raise NotAlike("steps are not plain ones")
        if (one.work.round, one.work.steps) != (first.work.round, first.work.steps):
            raise NotAlike("rounds differ")
        if recorded and len(one.batches.active) >= ENOUGH_RECORDED:
            raise NotAlike("recorded steps of so many clients gain nothing by more")
    return recorded


def _fitting(asked: Sequence[Asked], recorded: bool) -> list[list[int]]:
    """Runs whose clients fit into a chunk together, by their places."""
    most = cohort.most_rows(asked[0].work.task, recorded)
    groups: list[list[int]] = [[]]
    rows = 0
    for place, one in enumerate(asked):
        count = len(one.batches.active)
        if groups[-1] and rows + count > most:
            groups.append([])
            rows = 0
        groups[-1].append(place)
        rows += count
    return groups


def _update(asked: Sequence[Asked], numbers: Mapping[Path, list[float]]) -> list[tuple[Any, Any]]:
    first = asked[0]
    counts = [len(one.batches.active) for one in asked]
    whose = torch.repeat_interleave(torch.tensor(counts))
    batches = _beside([one.batches for one in asked])
    data = tuple(_beside(parts) for parts in zip(*(one.data for one in asked), strict=True))
    dtype = batches.weight.dtype
    columns = {path: torch.tensor(column, dtype=dtype)[whose] for path, column in numbers.items()}
    starts = [one.work.task.initial for one in asked]
    # One model's weights for all rows, unless seeds differ.
    same = all(start is starts[0] or _equal(start, starts[0]) for start in starts)
    initial = {} if same else {n: torch.stack([s[n] for s in starts])[whose] for n in starts[0]}
    rows = first.scheme.payload_rows
    received = _rows(first.scheme.records.payload, [one.payload for one in asked], whose, rows)
    kept = _rows(first.scheme.records.personal, [one.personal for one in asked], None)
    recorded = cohort.recorded(first.work, batches, "vmap")

    def one_of_many(
        own: Batch,
        seen: tuple[Batch, ...],
        payload: Any,
        personal: Any,
        told: Mapping[Path, Tensor],
        start: Tree,
    ) -> tuple[Any, Any]:
        scheme, lr, luck = with_numbers((first.scheme, first.work.sgd.lr, first.work.luck), told)
        task = replace(first.work.task, initial=start) if start else first.work.task
        sgd = replace(first.work.sgd, lr=lr, gradient=slope_in_vmap, recorded=recorded)
        work = Paced(
            task,
            sgd,
            steps(own),
            first.work.steps,
            first.work.round,
            luck,
            data=steps(seen[0]) if seen else (),
        )
        done: tuple[Any, Any] = scheme.local_update(work, payload, personal)
        return done

    cohort.keep_freed_memory()
    try:
        upload, personal = vmap(one_of_many)(batches, data, received, kept, columns, initial)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise NotAlike(str(error).partition("\n")[0]) from error
    ends = list(pairwise(accumulate(counts, initial=0)))
    return [(_cut(upload, *end), _cut(personal, *end)) for end in ends]


def differences(values: Sequence[Any], path: Path = ()) -> dict[Path, list[float]]:
    """The numbers in which things of one kind differ, each with its value in every one.

    Whatever else differs raises :class:`NotAlike`.
    """
    first = values[0]
    if all(type(one) is type(first) for one in values):
        if all(one == first for one in values):
            return {}
        if isinstance(first, float):
            return {path: list(values)}
        found: dict[Path, list[float]] = {}
        if isinstance(first, tuple):
            for place, same in enumerate(zip(*values, strict=True)):
                found |= differences(same, (*path, str(place)))
            return found
        if is_dataclass(first):
            for one in fields(first):
                parts = [getattr(value, one.name) for value in values]
                found |= differences(parts, (*path, one.name))
            return found
    raise NotAlike(f"{'.'.join(path) or 'a value'} differs")


def with_numbers(value: Any, numbers: Mapping[Path, Any]) -> Any:
    """The same with other numbers in some places, as :func:`differences` names them."""
    if () in numbers:
        return numbers[()]
    inner: dict[str, dict[Path, Any]] = {}
    for (head, *rest), number in numbers.items():
        inner.setdefault(head, {})[tuple(rest)] = number
    if isinstance(value, tuple):
        return tuple(with_numbers(one, inner.get(str(n), {})) for n, one in enumerate(value))
    changed = {name: with_numbers(getattr(value, name), told) for name, told in inner.items()}
    return replace(value, **changed) if changed else value


@dataclass(frozen=True)
class Paced(Work):
    """A client's work whose step sizes may be tensors, as those of many runs' rows are.

    A step of size η on f is one of size 1 on η f; where one field's size differs from the others',
    that field's slope is scaled.
    """

    def descend(
        self,
        objective: Callable[[Point, S], Tensor],
        point: Point,
        batches: Sequence[S],
        *,
        lr: Any = 0.0,
        rates: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Point:
        """See :meth:`Work.descend`."""
        base = lr if isinstance(lr, Tensor) or lr else self.sgd.lr
        paces = {n: r for n, r in (rates or {}).items() if r is not base}
        if not any(isinstance(one, Tensor) for one in (base, *paces.values())):
            return super().descend(objective, point, batches, lr=lr, rates=rates, **more)
        scale, step = (base, 1.0) if isinstance(base, Tensor) else (1.0, base)
        factors = {name: rate / base for name, rate in paces.items()}

        def scaled(at: Any, batch: S) -> Tensor:
            changed = {name: slowed(getattr(at, name), one) for name, one in factors.items()}
            return scale * objective(at._replace(**changed) if changed else at, batch)

        plain = replace(self, sgd=replace(self.sgd, lr=step))
        return Work.descend(plain, scaled, point, batches, **more)


def slowed(value: Any, factor: Any) -> Any:
    """The same value, whose slope is that many times as large."""
    if isinstance(value, Tensor):
        return value.detach() + (value - value.detach()) * factor
    return {name: slowed(one, factor) for name, one in value.items()}


def _beside(batches: Sequence[Batch]) -> Batch:
    """Chunks of batches under each other, padded to the most steps and examples."""
    count = max(one.weight.shape[1] for one in batches)
    places = max(one.weight.shape[2] for one in batches)

    def padded(value: Tensor, axes: int) -> Tensor:
        missing = [(count, 1), (places, 2)][:axes]
        room = [(size - value.shape[axis]) for size, axis in missing]
        if not any(room):
            return value
        # Pads are told from the last axis to the first, before and after.
        behind = [0, 0] * (value.ndim - 1 - axes)
        return pad(value, [*behind, *(n for more in reversed(room) for n in (0, more))])

    axes = {"active": 1, "chance": 1, "pace": 1}
    parts = {
        name: torch.cat([padded(getattr(one, name), axes.get(name, 2)) for one in batches])
        for name in Batch._fields
    }
    return Batch(**parts)


def _rows(
    record: Any, records: Sequence[Any], whose: Tensor | None, own: Sequence[str] = ()
) -> Any:
    """Records of several runs with a row for each client.

    Without ``whose`` every field has one already, else only those in ``own``.
    """
    trees = [flatten(one) for one in records]
    found: Tree = {}
    for name in trees[0]:
        parts = [tree[name] for tree in trees]
        if whose is None or name.partition("/")[0] in own:
            found[name] = torch.cat(parts)
        else:
            found[name] = torch.stack(parts)[whose]
    return unflatten(record, found)


def _cut(record: Any, first: int, last: int) -> Any:
    return unflatten(type(record), {n: v[first:last] for n, v in flatten(record).items()})


def _equal(one: Tree, other: Tree) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)
