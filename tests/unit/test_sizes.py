"""Clients of log-normal sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bouquet.core.errors import BadInput
from bouquet.data import DataConfig, load
from bouquet.data.partitions import partition
from bouquet.data.sizes import lognormal

# How many images of each digit MNIST has, training and test part together.
MNIST = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
LABELS = np.repeat(np.arange(10), MNIST)
FEDU = DataConfig(name="mnist", clients=100, sizes="lognormal", size_mean=619, size_std=344)
every_partition = pytest.mark.parametrize("kind", ["iid", "pathological", "dirichlet"])


def sizes_of(shares: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.array([len(share) for share in shares])


def test_the_numbers_have_the_moments_asked_for() -> None:
    """Of so many, both are within a hundredth; and logarithms are normal: no skew, kurtosis 3."""
    drawn = lognormal(100_000, 619, 344, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(619, rel=0.01)
    assert drawn.std() == pytest.approx(344, rel=0.01)
    logs = (np.log(drawn) - np.log(drawn).mean()) / np.log(drawn).std()
    assert (logs**3).mean() == pytest.approx(0, abs=0.05)
    assert (logs**4).mean() == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_fedus_mnist_has_100_clients_of_2_digits_of_mean_619_and_deviation_344(seed: int) -> None:
    """The largest of 100 is a matter of luck, so the deviation is within a tenth."""
    shares = partition(LABELS, FEDU, seed)
    assert sizes_of(shares).mean() == pytest.approx(619, rel=0.02)
    assert sizes_of(shares).std() == pytest.approx(344, rel=0.1)
    assert {len(np.unique(LABELS[share])) for share in shares} == {2}
    assert len(np.unique(LABELS[np.concatenate(shares)])) == 10


@every_partition
def test_no_example_goes_to_two_clients(kind: str) -> None:
    shares = partition(LABELS, replace(FEDU, partition=kind), 0)
    everyone = np.concatenate(shares)
    assert len(np.unique(everyone)) == len(everyone)
    assert all((np.diff(share) > 0).all() for share in shares)


@every_partition
def test_the_seed_alone_decides_who_gets_what(kind: str) -> None:
    config = replace(FEDU, partition=kind)
    one, again, other = (partition(LABELS, config, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])


def test_sizes_are_the_same_whatever_classes_clients_have() -> None:
    """Up to an example that a client's classes had no longer."""
    iid, skewed = (sizes_of(partition(LABELS, replace(FEDU, partition=p), 0)) for p in PAIR)
    assert abs(iid - skewed).max() <= 2


PAIR = ("iid", "pathological")


@every_partition
def test_without_a_mean_nearly_all_examples_are_given_away(kind: str) -> None:
    config = replace(FEDU, partition=kind, size_mean=0, size_std=0)
    sizes = sizes_of(partition(LABELS, config, 0))
    assert 0.95 * len(LABELS) <= sizes.sum() <= len(LABELS)
    assert sizes.std() / sizes.mean() == pytest.approx(344 / 619, rel=0.1)


def test_iid_clients_have_everyones_classes_and_dirichlet_ones_their_own() -> None:
    overall = np.array(MNIST) / sum(MNIST)
    apart = {}
    for kind, alpha in (("iid", 0.5), ("dirichlet", 100.0), ("dirichlet", 0.1)):
        config = replace(FEDU, partition=kind, dirichlet_alpha=alpha)
        shares = partition(LABELS, config, 0)
        own = [np.bincount(LABELS[share], minlength=10) / len(share) for share in shares]
        apart[kind, alpha] = np.abs(np.array(own) - overall).sum(axis=1).mean() / 2
    assert apart["iid", 0.5] < 0.02 < apart["dirichlet", 100.0] < 0.1 < apart["dirichlet", 0.1]


def test_the_smallest_clients_have_something_to_train_on_and_to_test() -> None:
    """Two of each class, however small the draw."""
    config = DataConfig(clients=60, sizes="lognormal", size_mean=12, size_std=12)
    data = load(config, 0, torch.float32)
    held = [torch.cat([split.train, split.test]) for split in data.clients.values()]
    assert min(len(one) for one in held) == 4
    assert all(len(split.test) for split in data.clients.values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"size_mean": 900.0},
            r"^data\.size-mean is 900 and data\.size-std 344, more than the 70000 examples of "
            r"mnist can give 100 clients with the pathological partition: at most 69\d on average",
        ),
        ({"partition": "perfedavg"}, "data.sizes must be 'auto' for the partition 'perfedavg'"),
        ({"clients": 60_000, "size_mean": 0.0}, "more than the 70000 examples.*not these"),
    ],
)
def test_what_the_pool_cannot_give_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        partition(LABELS, replace(FEDU, **changes), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (DataConfig(name="synthetic", sizes="lognormal"), "sizes must be 'auto' for synthetic"),
        (DataConfig(size_mean=5.0), "data.size-mean must be 0 unless data.sizes is 'lognormal'"),
        (DataConfig(size_std=5.0), "data.size-std must be 0 unless data.sizes is 'lognormal'"),
    ],
)
def test_sizes_that_say_nothing_are_refused(config: DataConfig, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        load(config, 0, torch.float32)
