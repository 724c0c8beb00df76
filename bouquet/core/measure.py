"""What the models of a run are compared by; a run says it once, its readers ask here."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

# What is predicted of an example: one of some classes, real numbers, or which of some labels.
CLASSES, VALUES, SEVERAL = "classes", "values", "several"


class Said(TypedDict):
    """What a line of the log and a summary say of the metric."""

    name: str
    lower_is_better: bool


@dataclass(frozen=True)
class Measure:
    """A number about a model, and which way is better.

    Parameters
    ----------
    name : str
        The end of its columns' names, ``shared_accuracy`` and ``personal_accuracy``.
    lower_is_better : bool
        Whether the smaller number is the better one.
    """

    name: str
    lower_is_better: bool = False

    def gain(self, shared: float, personal: float) -> float:
        """How much better the personal model does than the shared one."""
        return shared - personal if self.lower_is_better else personal - shared

    def worst(self, spread: Mapping[str, Any]) -> Any:
        """The worst client's number, of how the clients' are spread."""
        return spread.get("max" if self.lower_is_better else "min")

    @property
    def label(self) -> str:
        """Its name for a chart; everybody knows which way a loss goes."""
        lower = self.lower_is_better and self != LOSS
        return f"{self.name} (lower is better)" if lower else self.name

    @property
    def said(self) -> Said | None:
        """What a line of the log and a summary say of it: nothing where it is the usual one."""
        if self.name == ACCURATE.name:
            return None
        return {"name": self.name, "lower_is_better": self.lower_is_better}


ACCURATE = Measure("accuracy")
LOSS = Measure("loss", lower_is_better=True)


def prefix(part: str) -> str:
    """What comes before the names of numbers about some of a client's examples.

    Nothing for those its models are judged on, which are its test examples or what it held out.
    """
    return "train_" if part == "train" else ""


def counts(name: str, value: float) -> bool:
    """Whether a client's number is part of means over clients.

    A metric that is not defined on a client's examples is not; a loss that is NaN is a fault,
    which must show.
    """
    return name.endswith(f"_{LOSS.name}") or not math.isnan(value)


def told(line: Mapping[str, Any]) -> Measure:
    """The metric of a run by a line of its log or its summary; either may be broken."""
    said = line.get("metric")
    if not isinstance(said, Mapping) or not isinstance(said.get("name"), str):
        return ACCURATE
    return Measure(said["name"], said.get("lower_is_better") is True)


def in_event(event: Mapping[str, Any]) -> Measure:
    """What a round's evaluation is compared by: the metric, or else the loss."""
    return _if_there(told(event), event["metrics"], "shared_")


def in_summary(summary: Mapping[str, Any]) -> Measure:
    """What a finished run is compared by: the metric, or else the loss."""
    return _if_there(told(summary), summary.get("personal", {}), "")


def _if_there(metric: Measure, names: Collection[str], prefix: str) -> Measure:
    return metric if f"{prefix}{metric.name}" in names else LOSS
