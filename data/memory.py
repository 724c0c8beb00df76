"""Federated data that a program has in memory, written where a run can find it again."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strategies.core.errors import BadInput
from strategies.core.files import file_name

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
    clients = dict(_pairs(source))
    if not clients:
        raise BadInput("data must have at least one client, and has none.")
    for client, parts in clients.items():
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
                np.array([int(y) for _, y in examples]),
            )
    raise BadInput(
        f"data: what client {client!r} has must be (x, y), (x, y, x_test, y_test) or a data set of "
        f"pairs, not {type(held).__name__}."
    )


def _array(part: Any, client: str) -> Array:
    found = part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else np.asarray(part)
    if found.dtype.kind not in "iufb":
        raise BadInput(f"data: client {client!r} must have numbers, not {found.dtype}.")
    return found
