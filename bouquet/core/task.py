"""What a client learns: a model, its loss, and how well it does."""

import copy
import math
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, autocast, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd as _Convolution

from bouquet.core.chance import Seeded
from bouquet.core.judging import ACCURACY, Judge, Metric, binary_cross_entropy, cross_entropy
from bouquet.core.measure import CLASSES, LOSS, Measure
from bouquet.core.trees import Tree, dot

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
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    active: Tensor
    place: Tensor = torch.zeros((), dtype=torch.int64)
    chance: Tensor = torch.zeros((), dtype=torch.int64)

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
        The weights everyone starts from.
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
    targets: str = CLASSES

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

    def output(self, params: Tree, x: Tensor) -> Tensor:
        """What the model says about each example when it is used."""
        said: Tensor = functional_call(self._judged, params, (x,))
        return said

    def training_output(self, params: Tree, x: Tensor, seed: int) -> Tensor:
        """What it says while it learns; the seed is for what it draws."""
        # A cast weight that is kept would outlive the step that changes the weight.
        narrow = autocast(x.device.type, self.amp, cache_enabled=False) if self.amp else _as_it_is
        with Seeded(seed, x.device) if self.draws else _as_it_is, narrow:
            said: Tensor = functional_call(self.module, params, (x,))
        return said.float() if self.amp else said

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

    def loss(self, params: Tree, batch: Batch) -> Tensor:
        """The batch's mean loss, f(w; ξ), with the decay where there is one."""
        seed = int(batch.chance) if self.draws else 0
        output = self.training_output(params, batch.x, seed)
        loss = self._losses(output, batch.x, batch.y) @ batch.weight
        return loss + 0.5 * self.weight_decay * dot(params, params) if self.weight_decay else loss

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
