"""What a client learns: a model, its loss, and how well it does."""

import copy
import math
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, autocast, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd as _Convolution

from bouquet.core.chance import Seeded
from bouquet.core.judging import ACCURACY, Judge, Metric, binary_cross_entropy, cross_entropy
from bouquet.core.measure import CLASSES, LOSS, Measure
from bouquet.core.placement import CPU, moved
from bouquet.core.statistics import tell
from bouquet.core.trees import Tree, dot, is_statistic, plain, sha256

_as_it_is: AbstractContextManager[object] = nullcontext()


class Batch(NamedTuple):
    """The examples of one local step.

    Clients of unequal size train side by side, so a batch may be padded: padding
    has weight 0, and the weights of the real examples sum to 1.

    Parameters
    ----------
    x, y : Tensor
        Inputs and targets, first axis the example.
    weight : Tensor
        Each example's weight in the batch's mean.
    active : Tensor
        1, or 0 for a step that only other clients take.
    place : Tensor
        Where the examples are among the client's own.
    chance : Tensor
        The seed of the model's own draws in this step, for models that draw.
    pace : Tensor
        The step's share of the step size, where that falls from step to step.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    active: Tensor
    place: Tensor = torch.zeros((), dtype=torch.int64)
    chance: Tensor = torch.zeros((), dtype=torch.int64)
    pace: Tensor = torch.ones(())

    def whole(self) -> "Batch":
        """The same without padding."""
        real = self.weight > 0
        return self._replace(
            x=self.x[real], y=self.y[real], weight=self.weight[real], place=self.place[real]
        )


@dataclass(frozen=True)
class Task:
    """A model without weights, where its weights start, and its loss.

    It learns as PyTorch's models do in training (dropout drops) and is judged as they are
    when they are used (dropout rests).

    Parameters
    ----------
    module : nn.Module
        Used for its structure only, in training mode. Calling it with other weights swaps
        them in for the moment, so two threads must not share one.
    initial : Tree
        The weights everyone starts from, and the statistics, if the model keeps any.
    classes : int
        Number of classes, or of values or labels to predict; 0 for the quadratic problems, which
        have no accuracy.
    personal : frozenset of str
        The parameters that are personal in schemes that split the model.
    weight_decay : float
        λ of the (λ/2) ‖w‖² that is part of the loss trained on, and of no loss reported.
    draws : bool
        Whether the model draws at random while it learns.
    kind : Hashable
        What the structure is determined by, where that is known: two tasks of one kind differ in
        their weights alone.
    whole : bool
        Whether padding would change what the model learns or says, because it draws for the
        whole batch or takes statistics over it: its clients train and are judged one by one.
    criterion : callable, optional
        The loss of each example by outputs and targets; without, the data's own.
    metric : Metric
        What models are compared by; data without classes have no accuracy.
    amp : torch.dtype, optional
        The type of the model's products while it learns, where that is not the weights' own.
    constants : Tree
        The model's buffers that do not change: its own, and statistics that are frozen.
    paired : bool
        Whether the model cannot learn from a batch of one example.
    frozen : Tree
        Weights that nobody trains or sends, the same for everyone; ``initial`` has them not.
    targets : str
        What is predicted: ``classes``, ``values`` or ``several`` labels.
    """

    module: nn.Module
    initial: Tree
    classes: int
    personal: frozenset[str] = frozenset()
    weight_decay: float = 0.0
    draws: bool = False
    whole: bool = False
    kind: Hashable = None
    criterion: Judge | None = None
    metric: Metric = ACCURACY
    amp: torch.dtype | None = None
    constants: Tree = field(default_factory=dict)
    paired: bool = False
    frozen: Tree = field(default_factory=dict)
    targets: str = CLASSES

    def starting_from(self, weights: Tree) -> "Task":
        """The same task, some of whose weights and constants are others; no other model's are."""
        initial, constants, frozen = (
            {name: weights.get(name, value) for name, value in tree.items()}
            for tree in (self.initial, self.constants, self.frozen)
        )
        return replace(self, initial=initial, constants=constants, frozen=frozen)

    @property
    def fixed(self) -> Tree:
        """All that nobody trains or sends: frozen weights, and buffers that do not change."""
        return {**self.constants, **self.frozen}

    @cached_property
    def fixed_name(self) -> str:
        """A short name of what is fixed, with its values; empty where nothing is."""
        return sha256(moved(self.fixed, CPU)) if self.fixed else ""

    @property
    def whole_model(self) -> Tree:
        """The weights everyone starts from, frozen ones too."""
        return {**self.frozen, **self.initial}

    @property
    def frozen_statistics(self) -> Tree:
        """The statistics that training leaves as they are."""
        return {name: value for name, value in self.constants.items() if is_statistic(name)}

    @property
    def measured(self) -> str:
        """The metric's name; empty where there is none."""
        return self.metric.name if self.classes or self.metric != ACCURACY else ""

    @property
    def compared_by(self) -> Measure:
        """What two models are compared by on one example: the loss, if the metric is about all."""
        return LOSS if self.metric.whole or not self.measured else self.metric

    @property
    def guess(self) -> float | None:
        """The loss of a model that knows nothing, where that is known."""
        if self.criterion is binary_cross_entropy:
            return math.log(2)
        usual = self.criterion in (None, cross_entropy) and self.classes
        return math.log(self.classes) if usual else None

    @cached_property
    def _judged(self) -> nn.Module:
        """The model as it is used."""
        return copy.deepcopy(self.module).eval()

    @cached_property
    def convolves(self) -> bool:
        """Whether the model has convolutions, which gain nothing by being batched over clients."""
        return any(isinstance(part, _Convolution) for part in self.module.modules())

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """The names of what training changes beside the weights."""
        return tuple(name for name in self.initial if is_statistic(name))

    @property
    def buffers(self) -> list[str]:
        """The names of what is saved with the weights: statistics, frozen or not, and constants."""
        saved = self.module.state_dict().keys()
        return [n for n in [*self.statistics, *self.constants] if plain(n) in saved]

    @cached_property
    def _buffers(self) -> dict[str, Tensor]:
        return dict(self.module.named_buffers())

    def state_dict(self, params: Tree) -> Tree:
        """A model by PyTorch's names and types, as ``load_state_dict`` takes it."""
        if not self._buffers:
            return params
        return as_state(self.fixed | params, self.module.state_dict())

    def output(self, params: Tree, x: Tensor) -> Tensor:
        """What the model says about each example when it is used."""
        return self._call(self._judged, params, x)[0]

    def _call(self, module: nn.Module, params: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        """What a model says, and its statistics after that."""
        if not (self.constants or self.statistics):
            return functional_call(module, {**self.frozen, **params}, (x,)), {}
        given = {
            plain(name): typed(value.detach(), self._buffers[plain(name)].dtype).clone()
            if is_statistic(name)  # a copy, which the model may write to
            else value
            for name, value in (self.fixed | params).items()
        }
        said: Tensor = functional_call(module, given, (x,))
        kept = {name: value for name, value in params.items() if is_statistic(name)}
        return said, {n: given[plain(n)].detach().to(value.dtype) for n, value in kept.items()}

    def training_output(self, params: Tree, x: Tensor, seed: int) -> Tensor:
        """What it says while it learns; the seed is for what it draws."""
        return self._learn(params, x, seed)[0]

    def _learn(self, params: Tree, x: Tensor, seed: int) -> tuple[Tensor, Tree]:
        # A cast weight that is kept would outlive the step that changes the weight.
        narrow = autocast(x.device.type, self.amp, cache_enabled=False) if self.amp else _as_it_is
        with Seeded(seed, x.device) if self.draws else _as_it_is, narrow:
            said, statistics = self._call(self.module, params, x)
        return said.float() if self.amp else said, statistics

    def losses(self, params: Tree, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each example's loss, and its metric: whether it was predicted right."""
        return self.judge(self.output(params, x), x, y)

    def judge(self, output: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each output's loss and metric; where an example has no metric, false."""
        losses = self._losses(output, x, y)
        if self.measured and not self.metric.whole:
            return losses, self.metric.of(output, y)
        return losses, torch.zeros_like(losses, dtype=torch.bool)

    def _losses(self, output: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if self.criterion is not None:
            return self.criterion(output, y)
        if self.classes:
            return cross_entropy(output, y)
        gap = output - y
        return 0.5 * torch.einsum("bi,bij,bj->b", gap, x, gap)

    def loss(self, params: Tree, batch: Batch, shift: Tensor | None = None) -> Tensor:
        """The batch's mean loss, f(w; ξ), with the decay where there is one.

        With a ``shift`` it is that of the outputs with so much added.
        """
        seed = int(batch.chance) if self.draws else 0
        output, statistics = self._learn(params, batch.x, seed)
        if statistics:
            tell(params, statistics)
        output = output if shift is None else output + shift
        loss = self._losses(output, batch.x, batch.y) @ batch.weight
        return loss + 0.5 * self.weight_decay * dot(params, params) if self.weight_decay else loss

    def observe(self, params: Tree, batch: Batch) -> None:
        """Let a model's statistics take in a batch, where its losses are not heard."""
        if self.statistics:
            with torch.no_grad():
                _, statistics = self._learn(params, batch.x, int(batch.chance))
            tell(params, statistics)

    def score(self, params: Tree, x: Tensor, y: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss and metric on the examples that are no padding."""
        losses, metric = self.losses(params, x, y)
        # What a metric says of padding may be infinite, and that times 0 is NaN.
        counted = torch.where(real > 0, metric.to(real.dtype), 0)
        return losses @ real / real.sum(), counted @ real / real.sum()

    def answers(self, params: Tree, x: Tensor, y: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss on the examples that are no padding, and what the model says of each."""
        output = self.output(params, x)
        return self._losses(output, x, y) @ real / real.sum(), output


def as_state(params: Tree, like: Mapping[str, Tensor]) -> Tree:
    """Weights and buffers with the names, the order and the types of another state."""
    found = {plain(name): value for name, value in params.items()}
    return {n: typed(found[n], one.dtype) for n, one in like.items() if n in found}


def typed(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in a type; in a mean, a count may be no whole number."""
    whole = not dtype.is_floating_point and value.is_floating_point()
    return value.round().to(dtype) if whole else value.to(dtype)
