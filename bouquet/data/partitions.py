"""Who gets which examples: shares for the clients, then each client's train and test part."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.core.errors import BadInput
from bouquet.core.seeding import generator
from bouquet.data.classes import classes_of
from bouquet.data.federated import DataConfig, Split, client_ids
from bouquet.data.remembered import remembered
from bouquet.data.sizes import unequal

Indices = NDArray[np.int64]

_REMEDIES = {
    "iid": "",
    "pathological": ", a smaller data.classes-per-client or another partition",
    "dirichlet": ", a larger data.dirichlet-alpha or another partition",
    "perfedavg": ", a smaller data.images or another partition",
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
    if config.partition == "natural":
        raise BadInput(
            "data.partition must be one of 'iid', 'pathological', 'dirichlet', 'perfedavg' for "
            f"{config.name}, which has no clients of its own, not 'natural'."
        )
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
    if config.sizes == "lognormal":
        return unequal(labels, config, seed)
    rng = generator(seed, "partition")
    if config.partition == "perfedavg":
        return _perfedavg(labels, config, rng, too_many)
    if config.partition == "pathological" and config.class_choice != "random":
        return _chosen(labels, config, rng, too_many)
    facts = (config.partition, config.clients, config.classes_per_client, config.dirichlet_alpha)
    return remembered(labels, (*facts, seed), lambda: _drawn(labels, config, rng, too_many))


def _drawn(
    labels: Indices, config: DataConfig, rng: np.random.Generator, too_many: BadInput
) -> list[Indices]:
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


def _chosen(
    labels: Indices, config: DataConfig, rng: np.random.Generator, too_many: BadInput
) -> list[Indices]:
    """Each class in equal parts among the clients that a rule gives it to."""
    kinds = np.unique(labels)
    chosen = classes_of(config, len(kinds))
    shares: list[list[Indices]] = [[] for _ in chosen]
    for number, kind in enumerate(kinds):
        takers = [share for share, own in zip(shares, chosen, strict=True) if number in own]
        examples = rng.permutation(np.flatnonzero(labels == kind))
        if len(examples) < len(takers):
            raise too_many
        for share, part in zip(takers, np.array_split(examples, max(1, len(takers))), strict=False):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def _perfedavg(
    labels: Indices, config: DataConfig, rng: np.random.Generator, too_many: BadInput
) -> list[Indices]:
    """The split of Fallah et al. (Per-FedAvg, §5), with a = ``data.images``.

    Half the clients have a examples of each class in the first half (digits 0-4); each of the
    others has a/2 of one of those classes and 2a of one class of the second half.
    """
    kinds = np.unique(labels)
    low, high = kinds[: len(kinds) // 2], kinds[len(kinds) // 2 :]
    many = config.clients // 2
    # The classes in turn, so that all have takers; a lap later every pair is another one.
    pairs = [
        (low[number % len(low)], high[(number + number // len(low)) % len(high)])
        for number in range(config.clients - many)
    ]
    # How many quarters of 2a each class gives away: a/2, a and 2a are 1, 2 and 4 of them.
    quarters = dict.fromkeys(low, 2 * many) | dict.fromkeys(high, 0)
    for one, other in pairs:
        quarters[one] += 1
        quarters[other] += 4
    sizes = {kind: int((labels == kind).sum()) for kind in kinds}
    most = min(2 * (sizes[kind] // wanted) for kind, wanted in quarters.items() if wanted)
    if config.images > most:
        raise BadInput(
            f"data.images must be at most {most} for {config.clients} clients of {config.name}, "
            f"not {config.images}."
        )
    images = config.images or most
    if images < 2:
        raise too_many
    left = {kind: rng.permutation(np.flatnonzero(labels == kind)) for kind in kinds}

    def take(kind: np.int64, count: int) -> Indices:
        taken, left[kind] = left[kind][:count], left[kind][count:]
        return taken

    shares = [np.concatenate([take(kind, images) for kind in low]) for _ in range(many)]
    shares += [
        np.concatenate([take(one, images // 2), take(other, 2 * images)]) for one, other in pairs
    ]
    return [np.sort(share) for share in shares]


def downsampled(
    shares: Sequence[Indices], ids: Sequence[str], dropped: float, seed: int
) -> list[Indices]:
    """The shares after half the clients lost a part of theirs (Dinh et al., FedU, §V).

    Parameters
    ----------
    shares : sequence of arrays
        Each client's indices.
    ids : sequence of str
        The clients, in the same order.
    dropped : float
        What a client of the unlucky half loses; 0 leaves all as it is, and two are left it.
    seed : int
        Draws the half, and with a client's id what it keeps.
    """
    if not dropped:
        return list(shares)
    kept = list(shares)
    for number in generator(seed, "downsample").permutation(len(shares))[: len(shares) // 2]:
        share = shares[number]
        size = min(len(share), max(2, round(len(share) * (1 - dropped))))
        drawn = generator(seed, "downsample", ids[number]).permutation(len(share))[:size]
        kept[number] = share[np.sort(drawn)]
    return kept


def split_clients(
    labels: Indices,
    shares: Sequence[Indices],
    fraction: float,
    seed: int,
    ids: Sequence[str] | None = None,
    ordered: bool = False,
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
    ids : sequence of str, optional
        The clients' own names; numbers without.
    ordered : bool
        Whether a client's examples follow each other in time: then the last of every class
        are held out, for neighbours are too alike to test on.
    """
    clients = {}
    for client, share in zip(ids or client_ids(len(shares)), shares, strict=True):
        if len(share) < 2:
            raise BadInput(
                f"Client {client} has {len(share)} example{'s' * (len(share) != 1)}; a train/test "
                "split needs at least 2: use fewer clients or another partition."
            )
        rng = None if ordered else generator(seed, "split", client)
        held_out = hold_out(labels[share], fraction, rng)
        clients[client] = Split(
            train=torch.from_numpy(share[~held_out]), test=torch.from_numpy(share[held_out])
        )
    return clients


def hold_out(
    labels: Indices, fraction: float, rng: np.random.Generator | None
) -> NDArray[np.bool_]:
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
    rng : numpy.random.Generator, optional
        Chooses the examples; without, the last of every class are held out.
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
        members = np.flatnonzero(groups == group)
        members = members[::-1] if rng is None else rng.permutation(members)
        chosen[members[:count]] = True
    return chosen
