"""Federated data that a user's own function gives, by its import path."""

import inspect
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES, SEVERAL, VALUES
from bouquet.data.examples import drawn, refuse_labels
from bouquet.data.federated import DataConfig, FederatedData
from bouquet.data.memory import in_memory
from bouquet.data.targets import checked_targets
from bouquet.imports import imported


def own_data(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """What the function gives that ``data.name`` names.

    Parameters
    ----------
    config : DataConfig
        Names the function, and says how many of the clients take part and what they hold out.
    seed : int
        Decides the draws; the function gets it if it has a parameter ``seed``.
    dtype : torch.dtype
        Of the inputs, unless they are whole numbers.
    """
    where = f"data.name {config.name!r}"
    if config.downsample:
        raise BadInput(
            f"data.downsample must be 0 for {where}, not {config.downsample}: what its clients "
            "have is theirs."
        )
    function = imported(config.name, "data.name")
    if not callable(function):
        raise BadInput(f"{where} must name a function, not {function!r}.")
    given = _arguments(function, {"seed": seed, "path": config.path}, where)
    try:
        found = function(**given)
        if isinstance(found, FederatedData):
            return _some(_checked(found, dtype), config, seed)
        data = in_memory(found, 0, seed, dtype, config)
    except BadInput as error:
        raise BadInput(f"{where} must give clients' examples: {error}") from error
    except Exception as error:  # whatever the user's code raises
        raise BadInput(f"{where} fails: {type(error).__name__}: {error}.") from error
    if data.targets == CLASSES:
        refuse_labels(config, data.classes, data.y.numel(), where)
    return data


def _arguments(
    function: Callable[..., object], known: dict[str, object], where: str
) -> dict[str, object]:
    """What the function asks for, of what there is to be told."""
    try:
        signature = inspect.signature(function)
        given = {name: value for name, value in known.items() if name in signature.parameters}
        signature.bind(**given)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{where} must be called with nothing, or with {' and '.join(known)}: {error}."
        ) from error
    return given


def _some(data: FederatedData, config: DataConfig, seed: int) -> FederatedData:
    ids = sorted(data.clients)
    return data.restricted([ids[place] for place in drawn(len(ids), config.max_clients, seed)])


def _checked(data: FederatedData, dtype: torch.dtype) -> FederatedData:
    """The data in the run's type, unless a label or a client's example is not there."""
    if not data.clients or not 0 < len(data.x) == len(data.y):
        raise BadInput(
            f"there must be clients and an x for every y, not {len(data.clients)} clients, "
            f"{len(data.x)} x and {len(data.y)} y."
        )
    if data.targets != CLASSES:
        data = replace(data, y=_rows(data, dtype))
    elif data.classes and (data.y.dtype != torch.int64 or int(data.y.max()) >= data.classes):
        raise BadInput(f"y must be int64 labels below {data.classes}, the number of classes.")
    for client, split in data.clients.items():
        for part in (split.train, split.test):
            if not isinstance(client, str) or not _places(part, len(data.x)):
                raise BadInput(
                    f"client {client!r} must have an id of text, and train and test on examples "
                    f"from 0 to {len(data.x) - 1}, by int64 indices."
                )
    return replace(data, x=data.x.to(dtype)) if data.x.is_floating_point() else data


def _rows(data: FederatedData, dtype: torch.dtype) -> Tensor:
    """Values, or several labels, in the run's type."""
    if data.targets not in (VALUES, SEVERAL):
        raise BadInput(f"targets must be 'classes', 'values' or 'several', not {data.targets!r}.")
    y = torch.from_numpy(checked_targets(data.y.numpy(), data.targets, "FederatedData"))
    if y.shape[1] != data.classes:
        raise BadInput(f"y must have {data.classes} numbers an example, not {y.shape[1]}.")
    return y.to(dtype)


def _places(part: Tensor, count: int) -> bool:
    fits = part.dtype == torch.int64 and part.ndim == 1 and len(part) > 0
    return fits and int(part.min()) >= 0 and int(part.max()) < count
