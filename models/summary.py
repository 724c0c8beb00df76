"""How large a model is, and how much of it each split keeps personal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from bouquet.core.errors import BadInput
from bouquet.models.config import ModelConfig, Shape
from bouquet.models.splits import (
    PersonalConfig,
    frozen_names,
    named_splits,
    offers,
    personal_names,
)
from bouquet.models.zoo import build


@dataclass(frozen=True)
class Layer:
    """A model's layer: its name, its kind, and how many numbers it learns."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True)
class Share:
    """How many numbers are personal, shared and frozen with a split."""

    split: str
    personal: int
    shared: int
    frozen: int = 0


def layers(config: ModelConfig, shape: Shape, classes: int) -> list[Layer]:
    """A model's layers that learn, from input to output."""
    module = _built(config, shape, classes, None)
    own = [
        Layer(name, "Parameter", p.numel()) for name, p in module.named_parameters(recurse=False)
    ]
    inner = [
        Layer(name, type(child).__name__, sum(p.numel() for p in child.parameters()))
        for name, child in module.named_children()
    ]
    return [layer for layer in own + inner if layer.size]


def shares(
    config: ModelConfig, personal: PersonalConfig, shape: Shape, classes: int, extra: Sequence[str]
) -> list[Share]:
    """What each split keeps personal.

    Parameters
    ----------
    config, shape, classes : ModelConfig, tuple of int, int
        The model, an example's shape and the number of classes.
    personal : PersonalConfig
        The sizes of what splits add.
    extra : sequence of str
        Splits besides those the model names, such as a pattern.
    """
    names = offers(_built(config, shape, classes, None))
    names += [split for split in extra if split not in names]
    rows: list[Share] = []
    for split in names:
        try:
            rows.append(_share(config, replace(personal, split=split), shape, classes))
        except BadInput as error:
            if not personal.frozen or split in extra:
                raise
            wrong = error  # with that split, nothing would train
    if not rows:
        raise wrong
    return rows


def _share(config: ModelConfig, personal: PersonalConfig, shape: Shape, classes: int) -> Share:
    module = _built(config, shape, classes, personal)
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    held = sum(sizes.pop(name) for name in frozen_names(list(sizes), personal))
    mine = personal_names(list(sizes), personal.split, named_splits(module))
    kept = sum(sizes[name] for name in mine)
    return Share(personal.split, kept, sum(sizes.values()) - kept, held)


def _built(
    config: ModelConfig, shape: Shape, classes: int, personal: PersonalConfig | None
) -> nn.Module:
    return build(config, shape, classes, 0, torch.float32, personal)
