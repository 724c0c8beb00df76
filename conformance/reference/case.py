"""A case as a file of vectors has it: all that an algorithm needs, read from the JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .problems import Problem, Vector, flat, named, problem

Iterate = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What a file says, without what it expects.

    Parameters
    ----------
    told : mapping
        The file.
    """

    told: Mapping[str, Any]

    @cached_property
    def problem(self) -> Problem:
        """The clients' losses."""
        return problem(self.told["problem"], self.told["initial"], self.told["clients"])

    @property
    def start(self) -> Vector:
        """The model everyone starts from."""
        return flat(self.told["initial"])

    @property
    def clients(self) -> list[str]:
        """Everyone, sampled or not."""
        return list(self.told["clients"])

    @property
    def variant(self) -> str:
        """Which of the scheme's variants."""
        return str(self.told["variant"])

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """Of each round, the batches of those that take part."""
        return [one["batches"] for one in self.told["rounds"]]

    def symbol(self, *names: str) -> Any:
        """The values of some of the paper's symbols."""
        values = [self.told["symbols"][name]["value"] for name in names]
        return values[0] if len(values) == 1 else values

    def mean(self, models: Mapping[str, Vector]) -> Vector:
        """The mean over those that took part, by the file's weights."""
        weights = self.told["weights"]
        total = sum(weights[i] for i in models)
        mean: Vector = np.sum([weights[i] / total * x for i, x in models.items()], axis=0)
        return mean

    def part(self, x: Vector, *, personal: bool) -> dict[str, Any]:
        """The personal or the shared parameters of a model, by name."""
        own, model = self.told["personal"], named(self.problem.shapes, x)
        return {n: v.tolist() for n, v in model.items() if (n in own) == personal}

    def mask(self, *, personal: bool) -> Vector:
        """1 where an entry of the model is personal, or shared."""
        own, shapes = self.told["personal"], self.problem.shapes
        return flat({n: np.full(s, float((n in own) == personal)) for n, s in shapes.items()})
