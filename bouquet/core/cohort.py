"""A node's clients trained together, as one computation.

A local update is a pure function of one client's batches and personal state, so
``torch.func.vmap`` runs it for a chunk of clients at once. What cannot be batched
runs one client after the other, with the same result up to float rounding.
"""

import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.utils.rnn import pad_sequence

from bouquet.core.batches import steps
from bouquet.core.descent import slope_in_vmap
from bouquet.core.measure import LOSS
from bouquet.core.round import row_of
from bouquet.core.scheme import AnyScheme, Model, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Nothing, Tree, pick, size_in_bytes, stack

# Flower's logger, by its name: what is said here stands among its lines, wherever it runs.
_log = logging.getLogger("flwr")
_warned_of: set[type[nn.Module]] = set()
_warning = threading.Lock()

# Measured on 2 cores: past this many bytes of weights a chunk falls out of the cache and gains
# nothing more, or, with steps that are recorded, loses time. Past this many bytes of examples it
# does not fit into the heap that the C library gives a thread, 64 MB, and is taken from the system
# anew each time, page by page (measured: up to two fifths of a run).
CHUNK_WEIGHTS, CHUNK_WEIGHTS_RECORDED = 48 * 2**20, 7 * 2**20
CHUNK_EXAMPLES = 60 * 2**20
# However few clients a chunk has, a step of it takes as long as so many clients' parts of one more.
STEP = 4
# A GPU has no such cache and must be kept busy; so much of both leaves room for the rest of a step
# on a small one. Not measured.
GPU_TIMES = 8


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library reuse freed tensors instead of giving them back to the system.

    A step of a cohort frees and takes tens of megabytes several times; getting them anew
    each time costs a page fault for every 4 kB (measured: a tenth to a fifth of a round).
    """
    with suppress(OSError, AttributeError):  # other C libraries have no mallopt
        library = ctypes.CDLL(None)
        trim_threshold, mmap_threshold = -1, -3
        library.mallopt(trim_threshold, 2**31 - 1)
        library.mallopt(mmap_threshold, 2**30)


@dataclass(frozen=True)
class Scores:
    """Loss and metric of a model on each client's own test data."""

    loss: Tensor
    metric: Tensor


# A step is recorded in a tenth of a second, and the first time imports for one: from so many local
# steps on, or so many examples times weights in a round, a run of usual length is faster with it.
FEWEST_STEPS, LEAST_WORK = 16, 100_000_000


def records(task: Task, steps: int, examples: int) -> bool:
    """Whether steps are recorded: by model and local work alone, so that engines agree.

    Not by the number of rounds: a run that is resumed has more of them than it was told.
    """
    if task.whole:
        return False
    weights = sum(value.numel() for value in task.whole_model.values())
    return steps >= FEWEST_STEPS or steps * examples * weights >= LEAST_WORK


def chunks(
    clients: Sequence[str],
    loads: Sequence[int],
    task: Task,
    example_bytes: int,
    most: int,
    recorded: bool = False,
) -> list[list[str]]:
    """Divide clients into chunks, those with most to do first.

    In a chunk everybody is padded to the one with most to do, so those with about as much are
    together. Where all have as much, they keep their order, in chunks of nearly equal size.

    Parameters
    ----------
    clients : sequence of str
        Who works.
    loads : sequence of int
        The examples that each of them goes through.
    task : Task
        Its model's size limits a chunk.
    example_bytes : int
        What an example takes.
    most : int
        The user's limit; 0 for none.
    recorded : bool
        Whether steps are.
    """
    order = sorted(range(len(clients)), key=lambda place: -loads[place])
    room, found = _times(task) * CHUNK_EXAMPLES, []
    for start, end in _alike([loads[place] for place in order], 0, len(order)):
        by_examples = room // max(1, loads[order[start]] * example_bytes)
        limit = most or max(1, min(most_rows(task, recorded), by_examples))
        count = -(-(end - start) // limit)
        bounds = [start + (end - start) * place // max(1, count) for place in range(count + 1)]
        found += [[clients[place] for place in order[a:b]] for a, b in pairwise(bounds)]
    return found


def _alike(loads: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
    """Where falling loads are parted, if what the smaller ones are spared is worth more steps."""
    if start == end or loads[start] == loads[end - 1]:
        return [(start, end)] * (start < end)
    saved = {
        place: (loads[start] - loads[place]) * (end - place) - loads[place] * STEP
        for place in range(start + 1, end)
    }
    best = max(saved, key=saved.__getitem__)
    if saved[best] <= 0:
        return [(start, end)]
    return _alike(loads, start, best) + _alike(loads, best, end)


def most_rows(task: Task, recorded: bool) -> int:
    """How many models of a task fit into a chunk."""
    room = CHUNK_WEIGHTS_RECORDED if recorded else CHUNK_WEIGHTS
    return _times(task) * room // max(1, size_in_bytes(task.whole_model))


def _times(task: Task) -> int:
    on_gpu = any(value.device.type != "cpu" for value in task.initial.values())
    return GPU_TIMES if on_gpu else 1


def choice(scheme: AnyScheme, task: Task, asked: str) -> str:
    """How a chunk's clients train, by scheme and model alone: engines must agree to the last bit.

    ``vmap`` is one computation for all. Convolutions gain nothing by it, so their clients train
    one by one (``loop``), and so do those of models that draw, and states of unequal shapes.
    """
    if scheme.alone or task.whole:
        return "loop"
    if asked != "auto":
        return asked
    return "loop" if task.convolves else "vmap"


def update(
    scheme: AnyScheme,
    work: Work,
    payload: Any,
    personal: Any,
    batches: Batch,
    how: str,
    data: tuple[Batch, ...] = (),
) -> tuple[Any, Any]:
    """A chunk's local updates: uploads and new personal states, stacked.

    Parameters
    ----------
    scheme : Scheme
        What to run.
    work : Work
        What the clients have in common; its batches are ignored.
    payload : record
        What the server sent; the fields in the scheme's ``payload_rows`` have a row a client.
    personal : record
        Their personal states, stacked.
    batches : Batch
        Their batches, with the axes client, step, place.
    how : str
        ``vmap``, ``loop``, ``compiled``, or ``auto`` for whichever works.
    data : tuple of Batch
        What they look through, with the same axes; empty for schemes that do not.
    """
    return _together(scheme.local_update, scheme, work, payload, personal, batches, how, data)


def predictors(
    scheme: AnyScheme,
    work: Work,
    payload: Any,
    personal: Any,
    batches: Batch,
    how: str,
    data: tuple[Batch, ...] = (),
) -> Tree:
    """A chunk's own models, stacked; the parameters are those of :func:`update`."""

    def predict(own: Work, received: Any, state: Any) -> tuple[Model, Nothing]:
        return Model(scheme.predictor(own, received, state)), Nothing()

    models, _ = _together(predict, scheme, work, payload, personal, batches, how, data)
    return cast(Tree, models.w)


def newcomers(
    scheme: AnyScheme,
    work: Work,
    payload: Any,
    batches: Batch,
    how: str,
    data: tuple[Batch, ...] = (),
) -> Tree:
    """The models of clients that join after training, stacked; see :func:`update`."""
    shared = scheme.shared(work.task, payload)

    def adapt(own: Work, received: Any, state: Nothing) -> tuple[Model, Nothing]:
        return Model(scheme.newcomer(own, received, shared)), Nothing()

    models, _ = _together(adapt, scheme, work, payload, Nothing(), batches, how, data)
    return cast(Tree, models.w)


def _together(
    one: Callable[[Work, Any, Any], tuple[Any, Any]],
    scheme: AnyScheme,
    work: Work,
    payload: Any,
    personal: Any,
    batches: Batch,
    how: str,
    data: tuple[Batch, ...],
) -> tuple[Any, Any]:
    """Do one client's work for all of a chunk."""
    by_client = {name: getattr(payload, name) for name in scheme.payload_rows}
    chosen = choice(scheme, work.task, how)
    work = replace(work, sgd=replace(work.sgd, recorded=recorded(work, batches, chosen)))

    def one_of_many(
        own: Batch, mine: dict[str, Any], state: Any, seen: tuple[Batch, ...]
    ) -> tuple[Any, Any]:
        sgd = replace(work.sgd, gradient=slope_in_vmap)
        given = replace(work, batches=steps(own), sgd=sgd, data=steps(seen[0]) if seen else ())
        return one(given, payload._replace(**mine), state)

    count = len(batches.active)
    if chosen == "vmap" and (count > 1 or how == "vmap"):
        keep_freed_memory()
        try:
            return vmap(one_of_many)(batches, by_client, personal, data)
        except (RuntimeError, NotImplementedError) as error:
            if how == "vmap":
                raise
            _say_one_by_one(work.task, error)
    results = [
        one(
            replace(
                work,
                batches=_steps_of(batches, i, work.task.whole),
                data=_steps_of(data[0], i, work.task.whole) if data else (),
            ),
            row_of(scheme, payload, i),
            pick(personal, i),
        )
        for i in range(count)
    ]
    return stack([first for first, _ in results]), stack([second for _, second in results])


def recorded(work: Work, batches: Batch, chosen: str) -> str:
    """How a chunk's steps are recorded; empty for not at all."""
    _, drawn, examples = batches.weight.shape
    if chosen == "compiled":
        return chosen
    return "replayed" if records(work.task, work.steps or drawn, examples) else ""


def _say_one_by_one(task: Task, why: Exception) -> None:
    """Warn of slow work: once for a model, not for every chunk of every round."""
    model = type(task.module)
    with _warning:  # nodes of an inline simulation are threads
        if model in _warned_of:
            return
        _warned_of.add(model)
    reason = str(why).partition("\n")[0].partition(". ")[0]
    what = model.__name__ + " or its loss" * (task.criterion is not None)
    _log.warning("Clients work one by one, which is slow: %s cannot be batched (%s).", what, reason)


def forget() -> None:
    """Let the next run be warned anew."""
    _warned_of.clear()


def _steps_of(batches: Batch, client: int, whole: bool) -> Sequence[Batch]:
    """One client's batches; without padding for a model that padding would change."""
    found = steps(pick(batches, client))
    return [batch.whole() for batch in found if batch.active] if whole else found


def diagnostics(scheme: AnyScheme, states: Sequence[Any], shared: Tree) -> dict[str, list[float]]:
    """The scheme's own numbers about clients' personal states: for each, one a client.

    One client after the other, which for a few sums is faster than ``vmap``.
    """
    columns: dict[str, list[float]] = {}
    with torch.no_grad():
        for state in states:
            for name, value in scheme.diagnostics(state, shared).items():
                columns.setdefault(name, []).append(float(value))
    return columns


def score(task: Task, models: Tree, x: Tensor, y: Tensor, real: Tensor, *, own: bool) -> Scores:
    """Evaluate on each client's test examples.

    Parameters
    ----------
    task : Task
        Model and loss.
    models : Tree
        One model for all, or each client's own, stacked.
    x, y, real : Tensor
        Test examples with the axes client, place; ``real`` is 0 for padding, else 1.
    own : bool
        Whether ``models`` are the clients' own.
    """
    if not (task.measured and task.metric.whole):
        found = _judged(task.score, task, models, x, y, real, own)
        return Scores(*(one.cpu() for one in found))
    loss, outputs = _judged(task.answers, task, models, x, y, real, own)
    sizes = real.sum(dim=1).int().tolist()
    # Client by client, in double: what is about all of a client's examples knows no padding.
    metric = [
        float(task.metric.of(_plain(said[:size]), _plain(truth[:size])))
        for said, truth, size in zip(outputs, y, sizes, strict=True)
    ]
    return Scores(loss.cpu(), torch.tensor(metric, dtype=torch.float64))


def _plain(values: Tensor) -> Tensor:
    there = values.cpu()
    return there.double() if there.is_floating_point() else there


def single(task: Task, models: Tree, x: Tensor, y: Tensor, real: Tensor, *, own: bool) -> Tensor:
    """Each example's metric (whether it is right), or its loss if the metric is about all at once.

    By client and place; see :func:`score`.
    """
    by_loss = task.compared_by == LOSS

    def of_one(model: Tree, x: Tensor, y: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        losses, metric = task.losses(model, x, y)
        return (torch.where(real > 0, (losses if by_loss else metric).to(real.dtype), 0),)

    return _judged(of_one, task, models, x, y, real, own)[0]


def _judged(
    judge: Callable[..., tuple[Tensor, ...]],
    task: Task,
    models: Tree,
    x: Tensor,
    y: Tensor,
    real: Tensor,
    own: bool,
) -> Sequence[Tensor]:
    """Judge all clients at once, or one by one where that cannot be or padding would count."""

    def each() -> list[Tensor]:
        found = []
        for i in range(len(x)):
            model = {k: v[i] for k, v in models.items()} if own else models
            count = int(real[i].sum()) if task.whole else len(real[i])
            found.append(judge(model, x[i, :count], y[i, :count], real[i, :count]))
        return [_padded(parts) for parts in zip(*found, strict=True)]

    with torch.no_grad():
        # Convolutions of many models at once are slower than one by one, here as in training.
        if task.whole or task.convolves or len(x) == 1:
            return each()
        try:
            axes = (0 if own else None, 0, 0, 0)
            return cast(Sequence[Tensor], vmap(judge, in_dims=axes)(models, x, y, real))
        except (RuntimeError, NotImplementedError) as error:
            _say_one_by_one(task, error)
            return each()


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Numbers, or rows of unequal length, one under the other."""
    rows = list(parts)
    return torch.stack(rows) if rows[0].ndim == 0 else pad_sequence(rows, batch_first=True)
