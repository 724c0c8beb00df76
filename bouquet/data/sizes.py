"""Clients of unequal size: so many examples each, of the classes each is to have.

Dinh et al. (FedU, §V) share MNIST among 100 clients of 2 digits whose sizes have mean 619 and
standard deviation 344.
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bouquet.core.errors import BadInput
from bouquet.core.seeding import generator
from bouquet.data.classes import classes_of
from bouquet.data.federated import DataConfig

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

FEDU = 344 / 619  # the deviation of their clients' sizes, in means
LEAST = 2  # examples of a client: one to train on and one to test
# Sizes that mean and deviation are tried at where they are to be as large as the pool allows.
STEPS = 40


def unequal(labels: Indices, config: DataConfig, seed: int) -> list[Indices]:
    """Share examples among clients of log-normal sizes; no example goes to two of them.

    Parameters
    ----------
    labels : array of int64
        The class of every example.
    config : DataConfig
        How many clients, which classes they have (``data.partition``), and their sizes.
    seed : int
        The same seed gives the same shares.
    """
    if config.partition not in ("iid", "pathological", "dirichlet"):
        raise BadInput(
            "data.sizes must be 'auto' for the partition 'perfedavg', which says how many examples "
            f"a client has, not {config.sizes!r}."
        )
    kinds, classes, pool = np.unique(labels, return_inverse=True, return_counts=True)
    wishes = _wishes(config, pool, generator(seed, "wishes"))
    counts = _counts(config, wishes, pool, seed)
    rng = generator(seed, "unequal")
    shares: list[list[Indices]] = [[] for _ in counts]
    for kind in range(len(kinds)):
        order = rng.permutation(np.flatnonzero(classes == kind))
        ends = np.cumsum(counts[:, kind])
        for share, part in zip(shares, np.split(order[: ends[-1]], ends[:-1]), strict=True):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def lognormal(count: int, mean: float, deviation: float, rng: np.random.Generator) -> Floats:
    """Numbers from a log-normal distribution of given mean and standard deviation, shuffled.

    One is drawn from each of ``count`` equally likely slices, so that even a few clients have
    about the mean and the deviation asked for.
    """
    spread = np.log1p((deviation / mean) ** 2)
    slices = (np.arange(count) + rng.random(count)) / count
    normal = [NormalDist().inv_cdf(min(max(one, 1e-9), 1 - 1e-9)) for one in slices]
    drawn = np.exp(np.log(mean) - spread / 2 + spread**0.5 * np.array(normal))
    return np.asarray(rng.permutation(drawn))


def _wishes(config: DataConfig, pool: Indices, rng: np.random.Generator) -> Floats:
    """What share of each client's examples is to be of each class, before the pool has a say."""
    clients, kinds = config.clients, len(pool)
    match config.partition:
        case "iid":
            return np.tile(pool / pool.sum(), (clients, 1))
        case "dirichlet":
            return rng.dirichlet(np.full(kinds, config.dirichlet_alpha), clients)
    wishes = np.zeros((clients, kinds))
    if config.class_choice != "random":
        for shares, chosen in zip(wishes, classes_of(config, kinds), strict=True):
            shares[chosen] = 1 / config.classes_per_client
        return wishes
    for client, shares in enumerate(wishes):
        # A first class in turn, so that every class has a client where there are enough.
        first = client % kinds
        others = rng.permutation([kind for kind in range(kinds) if kind != first])
        shares[[first, *others[: config.classes_per_client - 1]]] = 1 / config.classes_per_client
    return wishes


def _counts(config: DataConfig, wishes: Floats, pool: Indices, seed: int) -> Indices:
    """How many examples of each class each client gets."""
    most = pool.sum() / config.clients
    if config.size_mean:
        found = _dealt(wishes, _sizes(config, config.size_mean, seed), pool)
        if found is None:
            raise _refusal(config, wishes, pool, seed, most)
        return found
    counts = _largest(config, wishes, pool, seed, most)
    if counts is None:
        raise _refusal(config, wishes, pool, seed, most)
    return counts


def _largest(
    config: DataConfig, wishes: Floats, pool: Indices, seed: int, most: float
) -> Indices | None:
    """The counts of the largest clients that the pool allows."""
    for step in range(STEPS, 0, -1):
        found = _dealt(wishes, _sizes(config, most * step / STEPS, seed), pool)
        if found is not None:
            return found
    return None


def _sizes(config: DataConfig, mean: float, seed: int) -> Floats:
    sizes = lognormal(
        config.clients, mean, config.size_std or FEDU * mean, generator(seed, "sizes")
    )
    classes = config.classes_per_client if config.partition == "pathological" else 1
    return np.maximum(np.rint(sizes), LEAST * classes)


def _dealt(wishes: Floats, sizes: Floats, pool: Indices) -> Indices | None:
    """Whole numbers near the wishes, a client's in a row, that the pool can give.

    Where a class has too many takers, all take less of it and more of their other classes, by
    turns until nobody lacks anything (iterative proportional fitting). None if that cannot be.
    """
    if sizes.sum() > pool.sum():
        return None
    counts = wishes * sizes[:, None]
    for _ in range(200):
        taken = counts.sum(axis=0)
        counts *= np.minimum(1, pool / np.maximum(taken, 1e-12))
        rows = counts.sum(axis=1)
        if (rows > sizes - 0.5).all():
            break
        counts *= (sizes / np.maximum(rows, 1e-12))[:, None]
    else:
        return None
    whole = np.floor(counts).astype(np.int64)
    left = pool - whole.sum(axis=0)
    for row, size, parts in zip(whole, sizes, counts - whole, strict=True):
        for kind in np.argsort(-parts, kind="stable"):
            more = min(1, int(size) - int(row.sum()), int(left[kind])) if parts[kind] > 0 else 0
            row[kind] += max(0, more)
            left[kind] -= max(0, more)
    return whole if (whole.sum(axis=1) >= LEAST).all() else None


def _refusal(config: DataConfig, wishes: Floats, pool: Indices, seed: int, most: float) -> BadInput:
    found = _largest(config, wishes, pool, seed, most)
    can = f"at most {found.sum() / len(found):.0f} on average" if found is not None else "not these"
    return BadInput(
        f"data.size-mean is {config.size_mean:g} and data.size-std {config.size_std:g}, more than "
        f"the {pool.sum()} examples of {config.name} can give {config.clients} clients with the "
        f"{config.partition} partition: {can}. Use smaller ones or fewer clients."
    )
