"""Facts of the real data sets, against what the loaders make of them.

The small archives are fetched if they are not in the cache: without a network these tests fail,
they do not hide. The large ones are left to BOUQUET_TEST_LARGE=1.
"""

import os
from functools import lru_cache

import numpy as np
import pytest
import torch

from bouquet.data import DataConfig, FederatedData, load
from bouquet.data.cache import fetch
from bouquet.data.describe import heterogeneity, label_table
from bouquet.data.images import writer_ids
from bouquet.data.text import ALPHABET
from tests.unit.test_data import DTYPE, own

large = pytest.mark.skipif(
    os.environ.get("BOUQUET_TEST_LARGE") != "1",
    reason="fetches more than 20 MB; BOUQUET_TEST_LARGE=1 runs it",
)


@lru_cache(maxsize=2)  # the images of more would fill the memory
def real(name: str, clients: int = 20) -> FederatedData:
    fetch(name)
    # The simplest partition is enough for facts about the whole.
    return load(DataConfig(name=name, clients=clients, partition="iid"), 0, DTYPE)


def sizes(data: FederatedData) -> list[int]:
    return [len(own(data, client)) for client in data.clients]


def mean_and_deviation(x: torch.Tensor) -> tuple[float, float]:
    return x.double().mean().item(), x.double().std().item()


def test_mnist() -> None:
    """LeCun's files: 60,000 + 10,000, the first digits 5 0 4 1 9 and 7 2 1 0 4."""
    data = real("mnist")
    assert data.x.shape == (70_000, 1, 28, 28)
    assert (data.x.min().item(), data.x.max().item()) == (0, 1)
    train = torch.bincount(data.y[:60_000]).tolist()
    assert train == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = torch.bincount(data.y[60_000:]).tolist()
    assert test == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.y[60_000:60_005].tolist() == [7, 2, 1, 0, 4]
    assert mean_and_deviation(data.x[:60_000]) == pytest.approx((0.1307, 0.3081), abs=1e-4)
    assert sizes(data) == [3500] * 20


def test_mnist_writers() -> None:
    """539 writers of 19 to 131 of the training digits each; no writer is in both parts."""
    data = real("mnist-writers")
    assert data.x.shape == (60_000, 1, 28, 28)
    assert torch.equal(data.x, real("mnist").x[:60_000])
    assert torch.equal(data.y, real("mnist").y[:60_000])
    assert len(data.clients) == 539
    assert (min(sizes(data)), max(sizes(data)), sum(sizes(data))) == (19, 131, 60_000)
    train, test = writer_ids("train"), writer_ids("test")
    assert (len(train), len(test)) == (60_000, 10_000)
    assert not set(train.tolist()) & set(test.tolist())
    for client in ("0000", "2154"):
        assert set(train[own(data, client)].tolist()) == {int(client)}
    few = load(DataConfig(name="mnist-writers", max_clients=7), 0, DTYPE)
    assert len(few.clients) == 7
    assert few.clients.keys() < data.clients.keys()
    assert len(few.x) == sum(sizes(few))


def test_har() -> None:
    """30 subjects, 10,017 windows of 6 x 128, 269 to 404 each; gravity is about 1 g."""
    data = real("har")
    assert data.x.shape == (10_017, 6, 128)
    assert list(data.clients) == [f"{subject:02d}" for subject in range(1, 31)]
    assert (min(sizes(data)), max(sizes(data))) == (269, 404)
    assert data.classes == 6
    counts = label_table(data)
    assert (counts > 0).all()  # everybody did everything
    assert heterogeneity(counts) < 0.1  # and for about as long
    gravity = data.x[:, :3].mean(dim=2).norm(dim=1)
    assert gravity.mean().item() == pytest.approx(1, abs=0.05)
    # Lying is the activity in which the phone at the waist does not stand upright.
    upright = data.x[:, 0].mean(dim=1)
    assert (upright[data.y == 5] < 0.5).double().mean() > 0.95
    assert (upright[data.y != 5] > 0.5).double().mean() > 0.95
    # Who walks shakes: the three kinds of walking come first.
    shaking = data.x[:, 0].std(dim=1)
    assert shaking[data.y < 3].median() > 5 * shaking[data.y >= 3].median()


def test_har_holds_out_the_last_windows_of_every_activity() -> None:
    data = real("har")
    for split in data.clients.values():
        for activity in range(6):
            trains = split.train[data.y[split.train] == activity]
            tests = split.test[data.y[split.test] == activity]
            assert trains.max() < tests.min()


def test_har_features_tell_activities_apart_and_a_model_of_ones_own_does_it_better() -> None:
    """Measured elsewhere: 0.916 (worst 0.580) with one model for all, 0.946 (0.812) alone."""
    from sklearn.linear_model import LogisticRegression

    fetch("har-features")
    config = DataConfig(name="har-features", test_fraction=0.3)
    data = load(config, 0, torch.float64)
    assert data.x.shape == (10_017, 30)
    assert torch.equal(data.y, real("har").y)
    x, y = data.x.numpy(), data.y.numpy()
    everyone = np.concatenate([split.train.numpy() for split in data.clients.values()])
    shared = LogisticRegression(max_iter=2000).fit(x[everyone], y[everyone])
    alone = []
    for split in data.clients.values():
        one = LogisticRegression(max_iter=2000).fit(x[split.train], y[split.train])
        alone.append([model.score(x[split.test], y[split.test]) for model in (shared, one)])
    (of_all, own_), worst = np.mean(alone, axis=0), np.min(alone, axis=0)
    assert of_all == pytest.approx(0.916, abs=0.01)
    assert own_ == pytest.approx(0.946, abs=0.01)
    assert worst == pytest.approx([0.580, 0.812], abs=0.03)


def test_shakespeare() -> None:
    """38 plays, 660 roles of at least 1,000 characters; Hamlet speaks as he should."""
    data = real("shakespeare")
    assert len(data.clients) == 660
    assert data.x.shape == data.y.shape == (len(data.x), 80)
    assert data.x.dtype == data.y.dtype == torch.int64
    assert torch.equal(data.x[:, 1:], data.y[:, :-1])
    assert data.classes == 80
    assert min(sizes(data)) >= 12
    assert len({client.rsplit("-", 1)[0] for client in data.clients if "HAMLET" in client}) == 1
    hamlet = own(data, "hamlet-HAMLET").sort().values
    text = "".join(ALPHABET[number] for number in data.x[hamlet].flatten())
    assert "To be, or not to be: that is the question:\nWhether 'tis nobler" in text
    # English as it is written: a blank every fifth or sixth character, then e, t and o.
    shares = torch.bincount(data.y.flatten(), minlength=80) / data.y.numel()
    frequent = "".join(ALPHABET[number] for number in shares.argsort(descending=True)[:4])
    assert frequent == " eto"
    assert shares[ALPHABET.index(" ")].item() == pytest.approx(0.16, abs=0.02)


def test_movielens() -> None:
    """943 users, 100,000 ratings, at least 20 each, 3.53 on average."""
    data = real("movielens")
    assert len(data.x) == 100_000
    assert len(data.clients) == 943
    assert (min(sizes(data)), max(sizes(data))) == (20, 737)
    assert torch.bincount(data.y).tolist() == [6110, 11370, 27145, 34174, 21201]
    assert data.y.double().mean().item() + 1 == pytest.approx(3.52986)


@large
def test_fashion_mnist() -> None:
    """Zalando's files: 7,000 of each class, the first labels 9 0 0 3 0 and 9 2 1 1 6."""
    data = real("fashion-mnist")
    assert data.x.shape == (70_000, 1, 28, 28)
    assert torch.bincount(data.y[:60_000]).tolist() == [6000] * 10
    assert torch.bincount(data.y[60_000:]).tolist() == [1000] * 10
    assert data.y[:5].tolist() == [9, 0, 0, 3, 0]
    assert data.y[60_000:60_005].tolist() == [9, 2, 1, 1, 6]
    assert mean_and_deviation(data.x[:60_000]) == pytest.approx((0.2860, 0.3530), abs=1e-4)


@large
def test_cifar10() -> None:
    """Krizhevsky's files: 6,000 of each class, the known means and deviations of the colours."""
    data = real("cifar10")
    assert data.x.shape == (60_000, 3, 32, 32)
    assert data.x.is_contiguous()
    assert torch.bincount(data.y[:50_000]).tolist() == [5000] * 10
    assert torch.bincount(data.y[50_000:]).tolist() == [1000] * 10
    assert data.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert data.y[50_000:50_005].tolist() == [3, 8, 8, 0, 6]
    train = data.x[:50_000]
    assert train.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    colours = [train[:, channel].std().item() for channel in range(3)]
    assert colours == pytest.approx([0.2470, 0.2435, 0.2616], abs=1e-4)
    assert (data.x[0, :, 0, 0] * 255).round().tolist() == [59, 62, 63]
