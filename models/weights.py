"""A model's first weights from a file: names and shapes must be the model's own."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from bouquet.core.errors import BadInput
from bouquet.models.config import ModelConfig

Shaped = Mapping[str, Tensor]


def checksum(path: str) -> str:
    """The SHA-256 of a file of weights."""
    try:
        found = os.stat(path)
        return _checksum(path, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise BadInput(f"model.weights {path!r} cannot be read: {error.strerror}.") from error


@lru_cache(maxsize=8)
def _checksum(path: str, changed: int, size: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_weights(module: nn.Module, config: ModelConfig) -> None:
    """Let a model start from the file ``model.weights``.

    Parameters
    ----------
    module : nn.Module
        Changed in place; its type stays.
    config : ModelConfig
        Names the file, its checksum where one is known, and what is not taken from it.
    """
    path, known = config.weights, config.weights_sha256
    found = checksum(path)
    if known and found != known:
        raise BadInput(
            f"model.weights {path!r} must be the file whose SHA-256 is {known} "
            f"(model.weights-sha256), not {found}."
        )
    there, skipped = _read(path), config.weights_skip.split()
    # With buffers, and a tied weight under each of its names.
    own = module.state_dict(keep_vars=True)
    for pattern in skipped:
        if not any(fnmatchcase(name, pattern) for name in [*own, *there]):
            raise BadInput(
                f"model.weights-skip must match names of weights, such as {_some(list(own))}, "
                f"not {pattern!r}."
            )
    own = {name: value for name, value in own.items() if not _matches(name, skipped)}
    there = {name: value for name, value in there.items() if not _matches(name, skipped)}
    _refuse_unfit(config, own, there)
    with torch.no_grad():
        for name, value in there.items():
            own[name].copy_(value)
            if own[name].is_floating_point() and not own[name].isfinite().all():
                raise BadInput(
                    f"model.weights {path!r} must have finite numbers in {own[name].dtype}, which "
                    f"{name} has not."
                )


def _read(path: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, Tensor] = load_file(path)
    except OSError as error:
        raise BadInput(f"model.weights {path!r} cannot be read: {error}.") from error
    except SafetensorError as error:
        raise BadInput(
            f"model.weights {path!r} must be a safetensors file, the only kind that is read: "
            f"{error}."
        ) from error
    return found


def _refuse_unfit(config: ModelConfig, own: Shaped, there: Shaped) -> None:
    filled = {id(own[name]) for name in there if name in own}
    lacks = [name for name, value in own.items() if id(value) not in filled]
    besides = [name for name in there if name not in own]
    both = [name for name in there if name in own]
    shapes = [
        f"{name} ({_words(there[name])} there, {_words(own[name])} in the model)"
        for name in both
        if there[name].shape != own[name].shape
    ]
    kinds = [
        f"{name} ({there[name].dtype} there, {own[name].dtype} in the model)"
        for name in both
        if there[name].is_floating_point() != own[name].is_floating_point()
    ]
    wrong = [
        f"{what} {_some(names)}"
        for what, names in (
            ("it lacks", lacks),
            ("it has besides", besides),
            ("of another shape is", shapes),
            ("of another type is", kinds),
        )
        if names
    ]
    if wrong:
        raise BadInput(
            f"model.weights {config.weights!r} does not fit the model {config.name!r}: "
            f"{'; '.join(wrong)}. model.weights-skip names what is not to be taken from it."
        )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _words(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "one number"
