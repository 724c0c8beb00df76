"""What the data sets, the partitions and the clients' splits promise."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bouquet.core.config import keys_of, read
from bouquet.core.errors import BadInput
from bouquet.data import DATASETS, DataConfig, FederatedData, load
from bouquet.data.describe import draw, heterogeneity
from bouquet.data.federated import Split, client_ids
from bouquet.data.partitions import hold_out, split_clients
from bouquet.data.sources import labeller
from bouquet.models import MODELS

DTYPE = torch.float32
CLIENTS: list[dict[str, object]] = [
    {"A": [[2, 1], [1, 3]], "c": [0.1, 0.2]},
    {"A": [[1, 0], [0, 1]], "c": [5, 6]},
]
PROBLEM = {"init": [1.0, 2.0], "clients": CLIENTS}


def own(data: FederatedData, client: str) -> torch.Tensor:
    """All examples of a client."""
    return torch.cat([data.clients[client].train, data.clients[client].test])


def everyone(data: FederatedData) -> list[int]:
    """All examples of all clients, in order."""
    return sorted(torch.cat([own(data, client) for client in data.clients]).tolist())


def equal(one: FederatedData, other: FederatedData) -> bool:
    """Whether two data sets are the same, examples and splits."""
    return (
        torch.equal(one.x, other.x)
        and torch.equal(one.y, other.y)
        and one.clients.keys() == other.clients.keys()
        and all(
            torch.equal(one.clients[client].train, other.clients[client].train)
            and torch.equal(one.clients[client].test, other.clients[client].test)
            for client in one.clients
        )
    )


# Registry and config


def test_the_config_offers_the_registered_data_sets() -> None:
    (name,) = [one for one in keys_of(DataConfig, "data") if one.name == "data.name"]
    assert name.choices == tuple(DATASETS) == tuple(entry.name for entry in DATASETS.values())


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"'cifar10', 'digits', .* 'vehicle', or .* not 'mnits'"):
        read(DataConfig, {"data.name": "mnits"}, "data")


def test_every_data_set_names_a_model_there_is() -> None:
    assert {entry.model for entry in DATASETS.values()} <= MODELS.keys()


@pytest.mark.parametrize(("count", "last"), [(1, "000"), (1000, "999"), (1001, "1000")])
def test_the_text_order_of_client_ids_is_their_number_order(count: int, last: str) -> None:
    ids = client_ids(count)
    assert ids[-1] == last
    assert ids == sorted(ids)


# Digits and the partitions


def test_digits_are_the_default() -> None:
    data = load(DataConfig(), 0, DTYPE)
    assert data.x.shape == (1797, 64)
    assert data.x.dtype == DTYPE
    assert (data.x.min().item(), data.x.max().item()) == (0, 1)
    assert data.y.dtype == torch.int64
    assert torch.bincount(data.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert list(data.clients) == client_ids(20)
    assert data.classes == 10
    assert data.init is None


@pytest.mark.parametrize("partition", ["iid", "pathological", "dirichlet"])
def test_every_example_has_one_owner(partition: str) -> None:
    data = load(DataConfig(partition=partition), 0, DTYPE)
    assert everyone(data) == list(range(1797))


@pytest.mark.parametrize("clients", [3, 25])
@pytest.mark.parametrize("classes", [1, 2, 4, 10])
def test_a_pathological_client_has_just_so_many_classes(clients: int, classes: int) -> None:
    data = load(DataConfig(clients=clients, classes_per_client=classes), 1, DTYPE)
    for client in data.clients:
        assert len(set(data.y[own(data, client)].tolist())) == classes
    assert len(set(everyone(data))) == len(everyone(data))  # classes may be left over, not shared


def test_every_class_has_a_client_where_there_are_enough() -> None:
    data = load(DataConfig(clients=10, classes_per_client=1), 0, DTYPE)
    assert everyone(data) == list(range(1797))


# Chosen by a rule instead of drawn, classes are the same with every seed.
PAIRS = {
    "consecutive": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 9), (0, 9)],
    "spread": [(0, 5), (0, 5), (1, 6), (1, 6), (2, 7), (2, 7), (3, 8), (3, 8), (4, 9), (4, 9)],
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sizes", ["auto", "lognormal"])
@pytest.mark.parametrize("choice", ["consecutive", "spread"])
def test_classes_are_those_of_the_papers_code(choice: str, sizes: str, seed: int) -> None:
    """FedU's clients have neighbouring digits; of APFL's, half have small ones, half large ones."""
    config = DataConfig(clients=10, class_choice=choice, sizes=sizes)
    data = load(config, seed, DTYPE)
    classes = [tuple(data.y[own(data, client)].unique().tolist()) for client in data.clients]
    assert classes == PAIRS[choice]
    if sizes == "auto":
        assert everyone(data) == list(range(1797))
        for client in data.clients:  # each class in equal parts; digits are not equally many
            few, many = sorted(torch.bincount(data.y[own(data, client)]).tolist())[-2:]
            assert 85 <= few <= many <= 92


@pytest.mark.parametrize("choice", ["consecutive", "spread"])
@pytest.mark.parametrize("clients", [3, 25])
@pytest.mark.parametrize("classes", [1, 3, 10])
def test_chosen_classes_are_just_so_many(choice: str, clients: int, classes: int) -> None:
    config = DataConfig(clients=clients, classes_per_client=classes, class_choice=choice)
    data = load(config, 0, DTYPE)
    for client in data.clients:
        assert len(set(data.y[own(data, client)].tolist())) == classes
    assert len(set(everyone(data))) == len(everyone(data))


@pytest.mark.parametrize("choice", ["random", "consecutive", "spread"])
@pytest.mark.parametrize("partition", ["iid", "pathological", "dirichlet"])
def test_another_seed_shares_otherwise(partition: str, choice: str) -> None:
    config = DataConfig(partition=partition, class_choice=choice)
    one, other = (own(load(config, seed, DTYPE), "000").sort().values for seed in (0, 1))
    assert one.tolist() != other.tolist()


def test_iid_clients_have_equal_shares_of_shuffled_examples() -> None:
    data = load(DataConfig(partition="iid", clients=10), 0, DTYPE)
    shares = [own(data, client).sort().values for client in data.clients]
    assert {len(share) for share in shares} == {179, 180}
    assert not any(len(share) == share[-1] - share[0] + 1 for share in shares)  # not a run


def test_a_smaller_dirichlet_alpha_makes_clients_less_alike() -> None:
    def majority(alpha: float) -> float:
        """The share of its largest class in a client, on average."""
        data = load(DataConfig(partition="dirichlet", dirichlet_alpha=alpha), 0, DTYPE)
        counts = np.array([data.label_counts(client) for client in data.clients])
        return float(np.mean(counts.max(1) / counts.sum(1)))

    assert majority(100.0) < 0.2 < 0.35 < majority(0.2)


def test_the_per_fedavg_split_is_the_papers() -> None:
    """Half have a of each digit 0-4; the rest a/2 of one of them and 2a of one of 5-9 (§5)."""
    data = load(DataConfig(partition="perfedavg", clients=10, images=16), 0, DTYPE)
    shares = [torch.bincount(data.y[own(data, client)], minlength=10) for client in data.clients]
    assert [share.tolist() for share in shares[:5]] == [[16] * 5 + [0] * 5] * 5
    pairs = set()
    for share in shares[5:]:
        (low,), (high,) = share[:5].nonzero().tolist(), share[5:].nonzero().tolist()
        assert [share[:5].sum().item(), share[5:].sum().item()] == [8, 32]
        pairs.add((low[0], high[0]))
    assert {low for low, _ in pairs} == {high for _, high in pairs} == set(range(5))
    assert len(set(everyone(data))) == len(everyone(data))


def test_the_per_fedavg_split_takes_what_there_is() -> None:
    """20 clients: 10 a + 2 a/2 of digits 0-4, and 2 times 2a of the others: a <= 177 / 11."""
    data = load(DataConfig(partition="perfedavg"), 0, DTYPE)
    assert len(own(data, "000")) == 5 * 16
    with pytest.raises(BadInput, match=r"data\.images must be at most 16 for 20 clients of digits"):
        load(DataConfig(partition="perfedavg", images=17), 0, DTYPE)
    with pytest.raises(BadInput, match=r"the perfedavg partition .* smaller data\.images"):
        load(DataConfig(partition="perfedavg", clients=400), 0, DTYPE)


def test_digits_are_scikit_learns() -> None:
    """Its file is read without it, so a release that moves or changes the file is found here."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    found = load(DataConfig(name="digits"), 0, torch.float64)
    assert torch.equal(found.x, torch.from_numpy(pixels / 16))
    assert found.y.tolist() == labels.tolist()


def test_digits_have_no_clients_of_their_own() -> None:
    with pytest.raises(BadInput, match=r"data\.partition must be .* no clients of its own"):
        load(DataConfig(partition="natural"), 0, DTYPE)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_half_the_clients_lose_what_is_dropped(name: str) -> None:
    """FedU's experiments drop 80% of the data of half the clients."""
    whole = load(DataConfig(name=name, clients=10), 0, DTYPE)
    fewer = load(DataConfig(name=name, clients=10, downsample=0.8), 0, DTYPE)
    lucky = [
        client for client in whole.clients if len(own(whole, client)) == len(own(fewer, client))
    ]
    assert len(lucky) == 5
    for client in set(whole.clients) - set(lucky):
        assert len(own(fewer, client)) == round(0.2 * len(own(whole, client)))
        assert set(own(fewer, client).tolist()) < set(own(whole, client).tolist())


def test_a_client_keeps_two_examples_whatever_is_dropped() -> None:
    data = load(DataConfig(name="synthetic", examples=4, clients=2, downsample=0.99), 0, DTYPE)
    assert sorted(len(own(data, client)) for client in data.clients) == [2, 4]


def test_heterogeneity_is_the_distance_from_everyones_labels() -> None:
    assert heterogeneity(np.array([[3, 3], [10, 10]])) == 0
    assert heterogeneity(np.array([[4, 0], [0, 4]])) == pytest.approx(0.5)
    # Everyone's shares are 3/4 and 1/4; the clients' distances are 1/4 and 1/4.
    assert heterogeneity(np.array([[4, 0], [2, 2]])) == pytest.approx(0.25)


def picture(data: FederatedData, path: Path) -> NDArray[np.uint8]:
    """What is drawn of some data, in levels of grey."""
    from PIL import Image

    draw(data, "who", path / "who.png")
    with Image.open(path / "who.png") as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("L"))


@pytest.mark.parametrize(("clients", "classes"), [(2, 2), (80, 70), (50, 3)])
def test_there_is_a_picture_of_few_and_many_clients_and_classes(
    tmp_path: Path, clients: int, classes: int
) -> None:
    """Where each client has one class, a row has one dark place: it is lighter than if alike."""
    y = torch.arange(clients * 6) % classes
    parts = {
        f"c{n:02d}": Split(torch.arange(6 * n, 6 * n + 5), torch.tensor([6 * n + 5]))
        for n in range(clients)
    }
    names = tuple(f"${n} and a long name" for n in range(classes))  # a dollar is no formula
    data = FederatedData(torch.zeros(len(y), 1), y, parts, classes, names=names)
    alike, skewed = picture(data, tmp_path), picture(replace(data, y=y // 6 % classes), tmp_path)
    assert len(np.unique(skewed)) > 20
    assert (skewed > 245).sum() > (alike > 245).sum()


def test_data_without_classes_have_a_picture_of_sizes(tmp_path: Path) -> None:
    parts = {f"c{n}": Split(torch.arange(n + 1), torch.arange(1)) for n in range(45)}
    data = FederatedData(torch.zeros(45, 2, 2), torch.zeros(45, 2), parts, 0)
    even = replace(data, clients=dict.fromkeys(parts, parts["c44"]))
    stairs, block = picture(data, tmp_path), picture(even, tmp_path)
    assert stairs.mean() > block.mean()  # half of the block is white


def test_label_counts_count_the_training_labels() -> None:
    data = load(DataConfig(clients=3), 0, DTYPE)
    counts = data.label_counts("001")
    train = data.clients["001"].train
    assert counts == [int((data.y[train] == label).sum()) for label in range(10)]
    assert sum(counts) == len(train)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (DataConfig(classes_per_client=11), "classes-per-client must be at most 10.*not 11"),
        (DataConfig(clients=2000, partition="iid"), "data.clients is 2000, more than the iid"),
        (DataConfig(clients=899, partition="iid"), "Client 898 has 1 example; a train/test split"),
        (DataConfig(clients=898), "data.clients is 898, more than the pathological.*classes-per-"),
        (DataConfig(clients=500, partition="dirichlet"), "is 500, more than the dirichlet.*alpha"),
    ],
)
def test_clients_that_cannot_be_served_are_refused(config: DataConfig, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        load(config, 0, DTYPE)


@pytest.mark.parametrize(
    "config",
    [
        DataConfig(partition="iid"),
        DataConfig(partition="pathological"),
        DataConfig(partition="dirichlet"),
        DataConfig(name="synthetic"),
    ],
)
def test_the_seed_alone_decides(config: DataConfig) -> None:
    first = load(config, 3, DTYPE)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert equal(load(config, 3, DTYPE), first)
    assert not equal(load(config, 4, DTYPE), first)


def test_loading_leaves_no_trace_in_a_fresh_process() -> None:
    """The first load imports the heavy libraries: not before, silently, and no draw is lost."""
    script = """
import random, sys
import numpy, torch
from bouquet.data import DataConfig, load
assert not {"sklearn", "datasets", "flwr_datasets", "torchvision"} & sys.modules.keys()
states = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()
load(DataConfig(clients=3), 0, torch.float32)
assert states == (random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist())
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# The clients' own splits


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=2, max_size=60),
    fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 9),
)
def test_each_class_gives_its_due_to_the_test_part(
    labels: list[int], fraction: float, seed: int
) -> None:
    """With n examples and g groups (classes, the single examples being one group together),
    min(max(round(n f), 1), n - g) are held out: from a group of size k its due k/n of them,
    up to rounding, where that leaves the group one to train on; never all of a group."""
    classes = np.array(labels)
    held_out = hold_out(classes, fraction, np.random.default_rng(seed))
    counts = {label: labels.count(label) for label in labels}
    groups = np.array([label if counts[label] > 1 else -1 for label in labels])
    kinds, sizes = np.unique(groups, return_counts=True)
    total = held_out.sum()
    assert total == min(max(round(len(labels) * fraction), 1), len(labels) - len(kinds))
    for kind, size in zip(kinds, sizes, strict=True):
        taken, due = held_out[groups == kind].sum(), size * total / len(labels)
        assert taken < size
        assert taken > due - 1
        if all(sizes * total / len(labels) <= sizes - 1):  # no group is short of spare examples
            assert taken < due + 1


def test_a_quarter_of_each_class_is_held_out() -> None:
    labels = np.repeat([3, 7], [40, 8])
    held_out = hold_out(labels, 0.25, np.random.default_rng(0))
    assert (held_out[:40].sum(), held_out[40:].sum()) == (10, 2)


def test_a_client_of_one_class_is_split_too() -> None:
    assert hold_out(np.full(8, 5), 0.25, np.random.default_rng(0)).sum() == 2


def test_what_is_held_out_depends_on_the_draw() -> None:
    labels = np.zeros(20, dtype=np.int64)
    draws = {tuple(hold_out(labels, 0.5, np.random.default_rng(seed))) for seed in range(9)}
    assert len(draws) == 9


def test_of_what_follows_in_time_the_last_of_each_class_are_held_out() -> None:
    held_out = hold_out(np.array([0, 0, 1, 0, 0, 1, 1, 1]), 0.5, None)
    assert np.flatnonzero(held_out).tolist() == [3, 4, 6, 7]


def test_train_and_test_are_a_clients_examples_without_overlap() -> None:
    share = np.array([2, 3, 5, 7, 11, 13, 17, 19])
    split = split_clients(np.zeros(20, dtype=np.int64), [share], 0.25, 0)["000"]
    assert sorted(split.train.tolist() + split.test.tolist()) == share.tolist()
    assert (len(split.train), len(split.test)) == (6, 2)
    assert split.train.dtype == split.test.dtype == torch.int64


def test_another_seed_splits_otherwise() -> None:
    labels, mine = np.zeros(90, dtype=np.int64), np.arange(30)
    one, other = (split_clients(labels, [mine], 0.25, seed)["000"].test for seed in (0, 1))
    assert one.tolist() != other.tolist()


def test_a_clients_split_does_not_depend_on_the_others() -> None:
    labels, mine = np.zeros(90, dtype=np.int64), np.arange(30)
    alone = split_clients(labels, [mine], 0.25, 0)
    among = split_clients(labels, [mine, np.arange(30, 50), np.arange(50, 90)], 0.25, 0)
    assert torch.equal(alone["000"].test, among["000"].test)
    twins = split_clients(labels, [mine, mine], 0.25, 0)
    assert not torch.equal(twins["000"].test, twins["001"].test)


# Synthetic


def test_synthetic_clients_have_equally_many_examples_of_their_own() -> None:
    config = DataConfig(name="synthetic", clients=4, examples=40, features=7, classes=3)
    data = load(config, 0, torch.float64)
    assert data.x.shape == (160, 7)
    assert data.x.dtype == torch.float64
    assert data.classes == 3
    assert set(data.y.tolist()) <= {0, 1, 2}
    for number, client in enumerate(data.clients):
        assert sorted(own(data, client).tolist()) == list(range(40 * number, 40 * (number + 1)))
        assert len(data.clients[client].test) == 10


def test_the_kth_synthetic_input_varies_by_k_to_the_minus_1_2() -> None:
    config = DataConfig(name="synthetic", clients=50, examples=400, features=5)
    data = load(config, 0, torch.float64)
    within = data.x.reshape(50, 400, 5).var(dim=1).mean(dim=0)
    assert within.tolist() == pytest.approx([k**-1.2 for k in range(1, 6)], rel=0.05)


def test_beta_is_the_variance_of_the_clients_common_shift() -> None:
    """A client's mean over many inputs is V ~ N(0, β), its features' own N(0, 1) averaged out."""
    config = DataConfig(name="synthetic", clients=2000, examples=2, features=200, beta=4.0)
    means = load(config, 0, torch.float64).x.reshape(2000, -1).mean(dim=1)
    assert means.var().item() == pytest.approx(4, rel=0.1)


def test_gamma_is_the_variance_of_each_classs_mean_weight() -> None:
    """A column of W averages to μ ~ N(0, γ), and b is N(μ, 1): their covariance is γ."""
    config = DataConfig(features=500, classes=4000, gamma=4.0)
    weights, bias = labeller(config, np.random.default_rng(0))
    covariance = np.cov(weights.mean(axis=0), bias)
    assert covariance == pytest.approx(np.array([[4.0, 4.0], [4.0, 5.0]]), rel=0.1)
    assert weights.std(axis=0).mean() == pytest.approx(1, rel=0.01)


def test_gamma_changes_the_labels_and_beta_the_inputs() -> None:
    still = load(DataConfig(name="synthetic", gamma=0.0, beta=0.0), 0, DTYPE)
    models = load(DataConfig(name="synthetic", gamma=1.0, beta=0.0), 0, DTYPE)
    inputs = load(DataConfig(name="synthetic", gamma=0.0, beta=1.0), 0, DTYPE)
    assert torch.equal(still.x, models.x)
    assert not torch.equal(still.y, models.y)
    assert not torch.equal(still.x, inputs.x)


def test_a_linear_model_of_its_own_explains_each_synthetic_client() -> None:
    """The labels are argmax(Wᵀx + b): some W and b of the client's tell all its classes apart."""
    from sklearn.linear_model import LogisticRegression

    data = load(DataConfig(name="synthetic", clients=20, examples=60, features=3), 0, DTYPE)
    for client in data.clients:
        x, y = data.x[own(data, client)].numpy(), data.y[own(data, client)].numpy()
        if len(set(y)) > 1:
            assert LogisticRegression(C=1e6, max_iter=10_000).fit(x, y).score(x, y) > 0.98


def test_a_synthetic_client_does_not_depend_on_how_many_there_are() -> None:
    few = load(DataConfig(name="synthetic", clients=2), 0, DTYPE)
    many = load(DataConfig(name="synthetic", clients=5), 0, DTYPE)
    assert torch.equal(few.x, many.x[: len(few.x)])
    assert torch.equal(few.y, many.y[: len(few.y)])


# Quadratic


def quadratic(folder: Path, text: str, dtype: torch.dtype = torch.float64) -> FederatedData:
    """The problem a file with this text describes."""
    file = folder / "problem.json"
    file.write_text(text)
    return load(DataConfig(name="quadratic", path=str(file)), 0, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_quadratic_client_is_one_example_to_train_on_and_to_test(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    data = quadratic(tmp_path, json.dumps(PROBLEM), dtype)
    assert torch.equal(data.x, torch.tensor([[[2, 1], [1, 3]], [[1, 0], [0, 1]]], dtype=dtype))
    assert torch.equal(data.y, torch.tensor([[0.1, 0.2], [5, 6]], dtype=dtype))
    assert data.init is not None
    assert torch.equal(data.init, torch.tensor([1, 2], dtype=dtype))
    assert list(data.clients) == ["000", "001"]
    assert [split.train.tolist() for split in data.clients.values()] == [[0], [1]]
    assert [split.test.tolist() for split in data.clients.values()] == [[0], [1]]
    assert data.classes == 0
    assert data.label_counts("000") == []


def test_a_matrix_may_be_symmetric_up_to_rounding(tmp_path: Path) -> None:
    client = {"A": [[1e3, 1e-12], [0, 1]], "c": [0, 0]}
    assert len(quadratic(tmp_path, json.dumps(PROBLEM | {"clients": [client]})).clients) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"A": [[2, 1, 0], [1, 3, 0]]}, "client 001: 'A' must be 2 x 2, as 'init' is, not 2 x 3"),
        ({"A": [[1]], "c": [1]}, "client 001: 'A' must be 2 x 2"),
        ({"A": [[2, 1], [0, 3]]}, "client 001: 'A' must be symmetric"),
        ({"A": [[2, 1], [1]]}, "client 001: 'A' must be a list of equally long rows of numbers"),
        ({"A": [2, 1]}, "client 001: 'A' must be a list of equally long rows"),
        ({"A": [["2", "0"], ["0", "3"]]}, "client 001: 'A' must be .* rows of numbers"),
        ({"A": [[float("nan"), 0], [0, 1]]}, "client 001: 'A' must be .* finite"),
        ({"A": None}, "client 001: 'A' must be"),
        ({"c": [1, 2, 3]}, "client 001: 'c' must have 2 numbers, as 'init', not 3"),
        ({"c": [1, float("inf")]}, "client 001: 'c' must be a list of numbers, all finite"),
        ({"c": []}, "client 001: 'c' must be a list of numbers"),
    ],
)
def test_a_wrong_quadratic_client_is_named(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    clients = [CLIENTS[0], CLIENTS[1] | change]
    with pytest.raises(BadInput, match=f"problem.json, {sentence}"):
        quadratic(tmp_path, json.dumps(PROBLEM | {"clients": clients}))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "problem.json' is not JSON"),
        ("[]", "problem.json: 'init' is missing"),
        ('{"clients": []}', "problem.json: 'init' is missing"),
        ('{"init": [[1]]}', "problem.json: 'init' must be a list of numbers"),
        ('{"init": [1]}', "problem.json: 'clients' must be a list of at least one client"),
        ('{"init": [1], "clients": []}', "'clients' must be a list of at least one client"),
        ('{"init": [1], "clients": {"A": 1}}', "'clients' must be a list of at least one client"),
        ('{"init": [1], "clients": [3]}', "problem.json, client 000: 'A' is missing"),
        ('{"init": [1], "clients": [{"A": [[1]]}]}', "problem.json, client 000: 'c' is missing"),
    ],
)
def test_a_wrong_quadratic_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        quadratic(tmp_path, text)


def test_numbers_too_large_for_the_dtype_are_refused(tmp_path: Path) -> None:
    text = '{"init": [1e300], "clients": [{"A": [[1]], "c": [0]}]}'
    assert len(quadratic(tmp_path, text, torch.float64).clients) == 1
    with pytest.raises(BadInput, match="'init' must be a list of numbers, all finite"):
        quadratic(tmp_path, text, torch.float32)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("", "data.path must name the JSON file"),
        ("/no/such.json", "'/no/such.json' cannot be read"),
    ],
)
def test_a_missing_quadratic_file_is_refused(path: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        load(DataConfig(name="quadratic", path=path), 0, DTYPE)
