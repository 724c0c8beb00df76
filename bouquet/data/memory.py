"""Federated data that a program has in memory, written where a run can find it again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES
from bouquet.data.examples import drawn
from bouquet.data.federated import DataConfig, FederatedData, numbered
from bouquet.data.folder import joined
from bouquet.data.targets import kind_of, labels_of, refuse_strange
from bouquet.storage.files import file_name

Array = NDArray[np.generic]


def write_clients(source: object, folder: Path) -> None:
    """Write clients' examples as ``data.name=folder`` reads them.

    Parameters
    ----------
    source : mapping, or iterable of tuples
        By client id (x, y), (x, y, x_test, y_test), or a torch ``Dataset`` of pairs (x, y); or an
        iterable of (id, x, y). What has no test part of its own is split by
        ``data.test-fraction``.
    folder : Path
        A new directory.
    """
    for client, parts in _clients(source).items():
        place = folder / file_name(client)
        place.mkdir(parents=True)
        names = ("all",) if len(parts) == 2 else ("train", "test")
        for number, name in enumerate(names):
            x, y = (_array(part, client) for part in parts[2 * number : 2 * number + 2])
            if len(x) != len(y):
                raise BadInput(
                    f"data: client {client!r} has {len(x)} inputs and {len(y)} labels; every "
                    "example needs both."
                )
            np.savez(place / f"{name}.npz", x=x, y=y)


def in_memory(
    source: object,
    classes: int,
    seed: int,
    dtype: torch.dtype,
    config: DataConfig = DataConfig(),  # noqa: B008  # it cannot change
) -> FederatedData:
    """Clients' examples as a federation, without a file.

    Parameters
    ----------
    source : mapping, or iterable of tuples
        As for :func:`write_clients`.
    classes : int
        How many labels, or values to predict, there are; 0 for as many as are found.
    seed : int
        Decides what a client without a test part holds out.
    dtype : torch.dtype
        Of the inputs, unless they are whole numbers.
    config : DataConfig
        How many of the clients take part, what they hold out, and what is predicted.
    """
    everyone = sorted(_clients(source).items())
    some = [everyone[number] for number in drawn(len(everyone), config.max_clients, seed)]
    parts = {client: _examples(config, held, client) for client, held in some}
    labels = [y for both in parts.values() for _, y in both]
    if kind_of(config) == CLASSES:
        classes = classes or 1 + max(int(y.max(initial=-1)) for y in labels)
    else:
        classes = classes or labels[0].shape[1]
    for y in labels:
        refuse_strange(config, y, classes, "data")
    pairs = [(both[0], both[1] if both[1:] else None) for both in parts.values()]
    called = replace(config, path="data")  # by complaints
    return joined(called, seed, dtype, list(parts), pairs, numbered(classes))


def _examples(config: DataConfig, held: Sequence[Any], client: str) -> list[tuple[Array, Array]]:
    """What a client has: training and test part, or both in one."""
    found = []
    for place in range(0, len(held), 2):
        x, y = (_array(part, client) for part in held[place : place + 2])
        if not 0 < len(x) == len(y):
            raise BadInput(
                f"data: client {client!r} must have a label for every input, and at least one, not "
                f"{len(x)} inputs and {len(y)} labels."
            )
        found.append((x, labels_of(config, y, f"data: client {client!r}")))
    return found


def _clients(source: object) -> dict[str, Sequence[Any]]:
    clients: dict[str, Sequence[Any]] = {}
    for client, held in _pairs(source):
        if client in clients:
            raise BadInput(f"data: there are two clients {client!r}; each must be there once.")
        clients[client] = held
    if not clients:
        raise BadInput("data must have at least one client, and has none.")
    return clients


def _pairs(source: object) -> Iterable[tuple[str, Sequence[Any]]]:
    if isinstance(source, Mapping):
        for client, held in source.items():
            yield str(client), _parts(held, str(client))
    elif isinstance(source, Iterable):
        for entry in source:
            client, *held = entry
            yield str(client), _parts(tuple(held), str(client))
    else:
        raise BadInput(
            "data must be a name, a mapping of client ids to (x, y), or an iterable of "
            f"(id, x, y), not {type(source).__name__}."
        )


def _parts(held: Any, client: str) -> Sequence[Any]:
    if isinstance(held, (tuple, list)) and len(held) in (2, 4):
        return held
    if hasattr(held, "__getitem__") and hasattr(held, "__len__"):
        examples = [held[place] for place in range(len(held))]
        if examples and all(isinstance(one, (tuple, list)) and len(one) == 2 for one in examples):
            return (
                np.stack([_array(x, client) for x, _ in examples]),
                np.stack([_array(y, client) for _, y in examples]),
            )
    raise BadInput(
        f"data: what client {client!r} has must be (x, y), (x, y, x_test, y_test) or a data set of "
        f"pairs, not {type(held).__name__}."
    )


def _array(part: Any, client: str) -> Array:
    try:
        found = part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else np.asarray(part)
    except ValueError as error:  # rows of unequal length
        raise BadInput(f"data: client {client!r} must have arrays of numbers: {error}.") from error
    if found.dtype.kind not in "iufb":
        raise BadInput(f"data: client {client!r} must have numbers, not {found.dtype}.")
    return found
