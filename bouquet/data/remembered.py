"""Partitions that were drawn before, kept beside the fetched data.

Drawing one imports ``datasets``, pandas and seaborn, which takes longer than a small run's training
does; every worker of every run would pay for it again.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.core.trees import digest
from bouquet.data.cache import cache_folder
from bouquet.storage.atomic import write_atomically
from bouquet.storage.files import BadFile, seal, unseal

KIND = "bouquet-partition-1"
MOST = 64  # files that are kept, the newest

Indices = NDArray[np.int64]


def remembered(
    labels: Indices, facts: Sequence[object], draw: Callable[[], list[Indices]]
) -> list[Indices]:
    """The shares that ``draw`` gives, from the last time where it was called before.

    Parameters
    ----------
    labels : array of int64
        Of the examples that are shared out.
    facts : sequence
        All else that the shares depend on, as ``repr`` tells it; who draws them is added.
    draw : callable
        Draws them.
    """
    drawn_by = [version(name) for name in ("flwr-datasets", "datasets", "numpy")]
    name = digest([np.ascontiguousarray(labels).tobytes(), repr([*facts, *drawn_by]).encode()])
    path = cache_folder() / "partitions" / f"{name}.safetensors"
    with suppress(BadFile, OSError, KeyError, RuntimeError):  # else it is drawn and written anew
        if path.is_file():
            _, kept = unseal(path, KIND)
            return [share.numpy() for share in kept["examples"].split(kept["sizes"].tolist())]
    shares = draw()
    with suppress(OSError):  # a cache that cannot be written to is none
        _keep(path, shares)
    return shares


def _keep(path: Path, shares: list[Indices]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = torch.tensor([len(share) for share in shares])
    examples = torch.from_numpy(np.concatenate(shares))
    write_atomically(path, seal(KIND, {}, {"examples": examples, "sizes": sizes}))
    # Others may sweep the folder at the same time.
    newest_first = sorted(path.parent.glob("*.safetensors"), key=_written, reverse=True)
    for old in newest_first[MOST:]:
        old.unlink(missing_ok=True)


def _written(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
