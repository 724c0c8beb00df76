"""From a pool of examples to a federation: by partition, or by the owners they have."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES
from bouquet.core.seeding import generator
from bouquet.data.federated import DataConfig, FederatedData, client_ids
from bouquet.data.partitions import Indices, downsampled, partition, split_clients

LABELS_REMEDY = (
    "data.labels=classes takes every different one for a class, data.labels=values predicts them"
)
FEW_KINDS = 20  # so many classes or words are no wonder, however few the rows


def shared_out(
    config: DataConfig, seed: int, x: Tensor, labels: Indices, classes: int
) -> FederatedData:
    """Examples nobody owns, shared out by ``data.partition``."""
    shares = partition(labels, config, seed)
    ids = client_ids(len(shares))
    shares = downsampled(shares, ids, config.downsample, seed)
    clients = split_clients(labels, shares, config.test_fraction, seed)
    return FederatedData(x, torch.from_numpy(labels), clients, classes)


def owned(
    config: DataConfig,
    seed: int,
    x: Tensor,
    y: Tensor,
    owners: Sequence[str] | NDArray[np.str_],
    classes: int,
    ordered: bool = False,
    targets: str = CLASSES,
) -> FederatedData:
    """Examples that have owners, who are the clients.

    Parameters
    ----------
    config : DataConfig
        How many of the clients take part and what they hold out.
    seed : int
        Decides the draws.
    x, y : Tensor
        The examples.
    owners : sequence of str
        The client of every example.
    classes : int
        How many labels there are.
    ordered : bool
        Whether a client's examples follow each other in time.
    targets : str
        What is predicted.
    """
    ids, whose = np.unique(np.asarray(owners), return_inverse=True)
    order = np.argsort(whose, kind="stable").astype(np.int64)
    shares = np.split(order, np.cumsum(np.bincount(whose))[:-1])
    chosen = drawn(len(ids), config.max_clients, seed)
    names = [str(ids[number]) for number in chosen]
    shares = downsampled([shares[number] for number in chosen], names, config.downsample, seed)
    # Of text every position has a label, and values have none: no class can be held out in equal
    # parts.
    labels = y.numpy() if y.dim() == 1 else np.zeros(len(y), dtype=np.int64)
    clients = split_clients(labels, shares, config.test_fraction, seed, names, ordered)
    everyone = FederatedData(x, y, clients, classes, targets=targets)
    return everyone if len(chosen) == len(ids) else everyone.restricted(names)


def drawn(count: int, most: int, seed: int) -> list[int]:
    """Which of so many clients take part, if at most ``most`` do; 0 for all."""
    if not most or most >= count:
        return list(range(count))
    return sorted(generator(seed, "clients").permutation(count)[:most].tolist())


def refuse_gaps(config: DataConfig, x: NDArray[np.generic], where: str) -> None:
    """Refuse infinite inputs, and missing ones unless ``data.missing`` fills them."""
    if x.dtype.kind != "f":
        return
    bad = np.isinf(x) if config.missing != "refuse" else ~np.isfinite(x)
    if bad.any():
        row, *position = map(int, np.argwhere(bad)[0])
        what = "infinite" if np.isinf(x[(row, *position)]) else "NaN"
        remedy = "" if what == "infinite" else " (data.missing=mean or zero would fill it)"
        at = ", ".join(map(str, position))
        raise BadInput(f"{where}: example {row} of x is {what} at {at}, from 0{remedy}.")


def refuse_labels(config: DataConfig, classes: int, labels: int, where: str) -> None:
    """Refuse labels that hardly any two examples share, unless the user calls them classes."""
    if config.labels == "auto" and classes > FEW_KINDS and labels < 5 * classes:
        raise BadInput(
            f"{where} has {classes} classes in {labels} labels: is it a measurement? "
            f"{LABELS_REMEDY}."
        )


def checked_labels(labels: NDArray[np.generic], where: object) -> Indices:
    """Labels as int64 from 0, or a sentence that says what else they are.

    One an example or, of text, one a position.
    """
    whole = labels.astype(np.int64) if labels.dtype.kind in "iub" else _whole(labels)
    if labels.ndim not in (1, 2) or whole is None or (whole < 0).any():
        raise BadInput(
            f"{where}: the labels must be whole numbers from 0; data.labels=values predicts other "
            "numbers."
        )
    return whole


def _whole(labels: NDArray[np.generic]) -> Indices | None:
    """Numbers with nothing behind the point, as int64; nothing if they are other things."""
    if labels.dtype.kind != "f" or not (np.isfinite(labels) & (labels == np.rint(labels))).all():
        return None
    return labels.astype(np.int64)
