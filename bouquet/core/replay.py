"""Gradient steps recorded once and replayed.

A gradient step is the same operations on other numbers every time, yet autograd and ``vmap`` work
them out anew for each. Here a step is traced once for its shapes (``make_fx``), the graph is made
shorter (:mod:`bouquet.core.graph_passes`), the update is written into the weights, and the graph is
run for every step and chunk of clients thereafter. No scheme knows of it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functionalize, vmap
from torch.fx import GraphModule

from bouquet.core.batches import Steps, in_one
from bouquet.core.compiling import compiled
from bouquet.core.graph_passes import mutates, projecting, updating
from bouquet.core.lifting import Lifted, NotReplayable
from bouquet.core.scripting import Recording, Take, looped, scripted
from bouquet.core.syntax_lock import syntax_lock

PROGRAMS = 512  # recordings that are kept
VARIANTS = 32  # recordings of one step, for other shapes and values, before it is left alone

Step = Callable[[Sequence[Tensor], Any, Any], Sequence[Tensor]]


@dataclass(frozen=True)
class Stretch:
    """Steps from a point, one a batch.

    Parameters
    ----------
    step : callable
        Of the moving tensors, the held ones (see ``held``) and a batch: the slopes of those that
        have a step size, and the new values of the others.
    project : callable, optional
        Of the moving tensors and the held ones: where the moving ones are brought after a step.
    moving : sequence of Tensor
        What moves.
    rates : tuple of float
        The step sizes of the first of them; the others, such as an optimizer's moments, have none.
    held : object
        What objective and projection refer to.
    batches : sequence
        One a step.
    key : Hashable
        All else that the two functions depend on.
    compiled : bool
        Whether the recording is handed to PyTorch's compiler.
    """

    step: Step
    project: Callable[[Sequence[Tensor], Any], Sequence[Tensor]] | None
    moving: Sequence[Tensor]
    rates: tuple[float, ...]
    held: Any
    batches: Sequence[Any]
    key: Hashable
    compiled: bool = False

    def taken(self) -> list[Tensor]:
        """Where the steps lead; under ``vmap``, those of all clients at once."""
        held, batch = Lifted(self.held), Lifted(self.batches[0])
        if not isinstance(self.batches, Steps):
            others = (one for one in self.batches if one is not self.batches[0])
            if any(Lifted(one).key != batch.key for one in others):
                raise NotReplayable("batches differ in shape")
        steps = Lifted(in_one(self.batches))
        if batch.watched:
            raise NotReplayable("a batch is not made of tensors")
        plan = _Plan(self, held, batch, len(self.batches))
        return list(_Taken.apply(plan, *self.moving, *held.tensors, *steps.tensors))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Plan:
    """A stretch without its tensors."""

    stretch: Stretch
    held: Lifted
    batch: Lifted
    steps: int

    def run(self, tensors: Sequence[Tensor], clients: int | None) -> tuple[Tensor, ...]:
        """Take the steps, for one client or for tensors that have a row for each of many."""
        count, referred = len(self.stretch.moving), len(self.held.tensors)
        # A copy of our own, which the steps write to.
        moving = [_own(tensor, clients) for tensor in tensors[:count]]
        held = list(tensors[count : count + referred])
        batches = list(tensors[count + referred :])
        axis = 0 if clients is None else 1
        first = [batch.select(axis, 0) for batch in batches]
        program = RECORDED.find(self, _Inputs(moving, held, first, clients))
        with torch.no_grad():
            rates = list(self.stretch.rates)
            program.take(self.steps, axis, rates, moving, held, batches)
        return tuple(moving)


class _Inputs(NamedTuple):
    """What a step is recorded on: its tensors, with a row for each client where there are many."""

    moving: Sequence[Tensor]
    held: Sequence[Tensor]
    batch: Sequence[Tensor]
    clients: int | None


class _Taken(torch.autograd.Function):
    """The steps as one operator: ``vmap`` hands it the tensors of all clients."""

    @staticmethod
    def forward(plan: _Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        return plan.run(tensors, None)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: nobody differentiates through local steps."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: _Plan, *tensors: Tensor) -> Any:
        rows = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        moved = plan.run(rows, info.batch_size)
        return moved, (0,) * len(moved)


def _own(tensor: Tensor, clients: int | None) -> Tensor:
    """A copy; weights of convolutions with channels last, which those are faster with."""
    if tensor.ndim == 4 and clients is None:
        _, c, h, w = tensor.shape
        # Where c is 1, PyTorch's own conversion leaves strides that it takes for channels first.
        return tensor.new_empty_strided(tensor.shape, (c * h * w, 1, c * w, c)).copy_(tensor)
    return tensor.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class _Program:
    """A recorded step.

    Parameters
    ----------
    take : callable
        Takes any number of such steps.
    seen : list of dict
        What the step asked watched objects for: the recording is right while they say the same.
    clients : int, optional
        How many clients it is for; without, it is for any number.
    """

    take: Take
    seen: list[dict[str, Any]]
    clients: int | None = None


@dataclass
class _Recorded:
    """All recordings of this process."""

    programs: "OrderedDict[Hashable, list[_Program]]" = field(default_factory=OrderedDict)
    refused: dict[Hashable, str] = field(default_factory=dict)  # and why
    lock: Any = field(default_factory=threading.RLock)

    def find(self, plan: _Plan, inputs: _Inputs) -> _Program:
        """The recording that fits, made now if there is none."""
        stretch = plan.stretch
        rows = 0 if inputs.clients is None else 1
        shapes = tuple((one.shape[rows:], one.dtype, one.device) for one in inputs.moving)
        shape = (shapes, len(inputs.held), rows, stretch.compiled)
        key = (stretch.key, plan.held.key, plan.batch.key, shape)
        with self.lock:
            if key in self.refused:
                raise NotReplayable(self.refused[key])
            variants = self.programs.setdefault(key, [])
            self.programs.move_to_end(key)
            for program in variants:
                fits = program.clients in (None, inputs.clients)
                if fits and plan.held.answers(program.seen):
                    return program
            if len(variants) >= VARIANTS:
                raise NotReplayable("a step is another one every time")
            try:
                with syntax_lock:
                    program = _record(plan, inputs)
            except NotReplayable as why:
                self.refused[key] = str(why)  # an exception would hold on to its frames' tensors
                raise
            variants.append(program)
            while len(self.programs) > PROGRAMS:
                self.programs.popitem(last=False)
            return program


RECORDED = _Recorded()


def _record(plan: _Plan, inputs: _Inputs) -> _Program:
    seen: list[dict[str, Any]] = [{} for _ in plan.held.watched]
    counts = (len(inputs.moving), len(inputs.held), len(inputs.batch))
    sizes = (len(plan.stretch.rates), *counts)
    clients = inputs.clients
    # PyTorch's compiler (2.13) loses what is written to a double without an axis.
    lost = any(not one.ndim and one.dtype == torch.float64 for one in inputs.moving)
    compiles = plan.stretch.compiled and not lost
    if clients is not None and not compiles:
        with suppress(RuntimeError):
            # For two and for three, and by what differs for any number.
            several = {n: _recorded(plan, _rows(inputs, n), seen) for n in (2, 3)}
            return _Program(scripted(several, sizes), seen)
    own = _recorded(plan, inputs, seen)
    if compiles:
        moving = map(torch.clone, inputs.moving)
        tried = (*plan.stretch.rates, *moving, *inputs.held, *inputs.batch)
        return _Program(looped(compiled(own.step, tried), own.project), seen, clients)
    try:
        return _Program(scripted({clients or 1: own}, sizes), seen, clients)
    except RuntimeError:  # an operation that TorchScript does not know
        return _Program(looped(own.step, own.project), seen, clients)


def _rows(inputs: _Inputs, count: int) -> _Inputs:
    """The same for so many clients, laid out alike."""

    def rows(tensor: Tensor) -> Tensor:
        shape = (count, *tensor.shape[1:])
        same = tensor[:1].expand(shape)
        if not tensor.stride(0):
            return same
        return tensor.new_empty_strided(shape, tensor.stride()).copy_(same)

    moving, held, batch, _ = inputs
    return _Inputs(list(map(rows, moving)), list(map(rows, held)), list(map(rows, batch)), count)


def _recorded(plan: _Plan, inputs: _Inputs, seen: list[dict[str, Any]]) -> Recording:
    moving, held, batch, clients = inputs
    stretch, count, referred = plan.stretch, len(moving), len(held)

    def slopes(*tensors: Tensor) -> Sequence[Tensor]:
        refer = plan.held.filled(tensors[count : count + referred], seen)
        batch = plan.batch.filled(tensors[count + referred :], ())
        return stretch.step(tensors[:count], refer, batch)

    def projected(*tensors: Tensor) -> Sequence[Tensor]:
        assert stretch.project is not None
        return stretch.project(tensors[:count], plan.held.filled(tensors[count:], seen))

    traced = _traced(slopes, (*moving, *held, *batch), clients)
    known = plan.held.constants(seen)
    step, project = updating(traced, count, len(stretch.rates), known), None
    if stretch.project is not None:
        project = projecting(_traced(projected, (*moving, *held), clients), count)
    return Recording(step, project)


def _traced(
    function: Callable[..., Any], tensors: Sequence[Tensor], clients: int | None
) -> GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    whole = function if clients is None else vmap(function)
    try:
        graph = make_fx(whole)(*tensors)
        return make_fx(functionalize(whole))(*tensors) if mutates(graph) else graph
    except NotReplayable:
        raise
    except Exception as error:  # whatever a user's model does that cannot be recorded
        raise NotReplayable(f"{type(error).__name__}: {error}") from error
