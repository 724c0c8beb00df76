"""Schemes, models and keys as programs have them, said as the keys that everyone uses."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from bouquet.core.config import Scalar, write
from bouquet.core.errors import BadInput
from bouquet.core.scheme import AnyScheme, Scheme
from bouquet.imports import KEYS, offer
from bouquet.strategies.registry import SCHEMES

SchemeLike = str | AnyScheme | type[AnyScheme]
ModelLike = str | nn.Module | Callable[..., nn.Module]


def told_of(scheme: SchemeLike) -> dict[str, object]:
    """A scheme as keys: its name, and its own where it is more than a name."""
    if isinstance(scheme, str):
        return {"scheme": scheme}
    kind = scheme if isinstance(scheme, type) else type(scheme)
    if not issubclass(kind, Scheme):
        raise BadInput(f"scheme must be a name, or a subclass of bouquet.Scheme, not {scheme!r}.")
    name = kind.name if SCHEMES.get(kind.name) is kind else offer(kind)
    own: Mapping[str, Scalar] = {} if isinstance(scheme, type) else write(scheme, kind.name)
    return {**own, "scheme": name}


def factory(model: nn.Module | Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """What makes the model: a module is copied, so that the user's own stays as it is."""
    if not isinstance(model, nn.Module):
        return model
    return lambda shape, classes: copy.deepcopy(model)


def flat(keys: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Keys as a program writes them, ``apfl={"alpha_lr": 0.1}``, as everyone else does.

    A function where a path may be, such as ``loss=mine``, becomes one.
    """
    found: dict[str, object] = {}
    for name, value in keys.items():
        full = prefix + name.replace("_", "-")
        if isinstance(value, Mapping):
            found |= flat(value, f"{full}.")
        else:
            found[full] = offer(value) if full in KEYS and callable(value) else value
    return found
