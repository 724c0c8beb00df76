"""Who gets which examples: shares for the clients, then each client's train and test part."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data.federated import DataConfig, Split, client_ids
from strategies.core.errors import BadInput
from strategies.core.seeding import generator

Indices = NDArray[np.int64]

_REMEDIES = {
    "iid": "",
    "pathological": ", a smaller data.classes-per-client or another partition",
    "dirichlet": ", a larger data.dirichlet-alpha or another partition",
}


def partition(labels: Indices, config: DataConfig, seed: int) -> list[Indices]:
    """Share examples among clients; no example goes to two of them.

    Parameters
    ----------
    labels : array of int64
        The class of every example.
    config : DataConfig
        How many clients and which partition.
    seed : int
        The same seed gives the same shares.

    Returns
    -------
    list of arrays
        Each client's indices into ``labels``, ascending.
    """
    kinds = len(np.unique(labels))
    if config.partition == "pathological" and config.classes_per_client > kinds:
        raise BadInput(
            f"data.classes-per-client must be at most {kinds}, the number of classes in "
            f"{config.name}, not {config.classes_per_client}."
        )
    too_many = BadInput(
        f"data.clients is {config.clients}, more than the {config.partition} partition of the "
        f"{len(labels)} examples of {config.name} can serve: use fewer clients"
        f"{_REMEDIES[config.partition]}."
    )
    if config.clients > len(labels):
        raise too_many
    rng = generator(seed, "partition")
    # The partitioners keep the order of the examples: shuffled here, so that all is ours to seed.
    order = rng.permutation(len(labels))
    # They warn of classes left over and of draws they repeat; neither is news to a user.
    with warnings.catch_warnings(action="ignore"):
        from datasets import Dataset

        partitioner = _partitioner(config, seed=int(rng.integers(2**32)))
        partitioner.dataset = Dataset.from_dict({"index": order, "label": labels[order]})
        try:
            parts = [partitioner.load_partition(number) for number in range(config.clients)]
        except ValueError as error:
            raise too_many from error
        return [np.sort(np.asarray(part[:]["index"], dtype=np.int64)) for part in parts]


def _partitioner(config: DataConfig, seed: int) -> Any:
    from flwr_datasets.partitioner import (
        DirichletPartitioner,
        IidPartitioner,
        PathologicalPartitioner,
    )

    match config.partition:
        case "iid":
            return IidPartitioner(config.clients)
        case "pathological":
            # A first class in turn, so that every class has a client where there are enough.
            return PathologicalPartitioner(
                num_partitions=config.clients,
                partition_by="label",
                num_classes_per_partition=config.classes_per_client,
                class_assignment_mode="first-deterministic",
                shuffle=False,
                seed=seed,
            )
        case _:
            return DirichletPartitioner(
                num_partitions=config.clients,
                partition_by="label",
                alpha=config.dirichlet_alpha,
                min_partition_size=2,  # one to train on and one to test
                shuffle=False,
                seed=seed,
            )


def split_clients(
    labels: Indices, shares: Sequence[Indices], fraction: float, seed: int
) -> dict[str, Split]:
    """Every client's train and test part, drawn apart from every other client's.

    Parameters
    ----------
    labels : array of int64
        The class of every example.
    shares : sequence of arrays
        Each client's indices into ``labels``.
    fraction : float
        The share of each client's examples held out.
    seed : int
        With the client's id, all that a client's draw depends on.
    """
    clients = {}
    for client, share in zip(client_ids(len(shares)), shares, strict=True):
        if len(share) < 2:
            raise BadInput(
                f"Client {client} has {len(share)} example{'s' * (len(share) != 1)}; a train/test "
                "split needs at least 2: use fewer clients or another partition."
            )
        held_out = hold_out(labels[share], fraction, generator(seed, "split", client))
        clients[client] = Split(
            train=torch.from_numpy(share[~held_out]), test=torch.from_numpy(share[held_out])
        )
    return clients


def hold_out(labels: Indices, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which of a client's examples are for testing: as near to ``fraction`` as can be.

    Each class gives its due, rounded up or down so that the sum is right, and keeps
    one example to train on. Classes of one example are taken together as one class:
    alone they could never be tested.

    Parameters
    ----------
    labels : array of int64
        The classes of at least two examples.
    fraction : float
        The share to hold out; at least one example is, and one is not.
    rng : numpy.random.Generator
        Chooses the examples.
    """
    _, groups, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    _, groups, sizes = np.unique(
        np.where(sizes[groups] == 1, -1, groups), return_inverse=True, return_counts=True
    )
    spare = sizes - 1
    total = min(max(round(len(labels) * fraction), 1), int(spare.sum()))
    due = sizes * total / len(labels)
    take = np.floor(due).astype(np.int64)
    while take.sum() < total:
        take[np.argmax(np.where(take < spare, due - take, -np.inf))] += 1
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for group, count in enumerate(take):
        chosen[rng.permutation(np.flatnonzero(groups == group))[:count]] = True
    return chosen
