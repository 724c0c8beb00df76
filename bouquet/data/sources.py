"""The data sets: where the examples come from and whose they are."""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.seeding import generator
from bouquet.data.examples import refuse_gaps, shared_out
from bouquet.data.federated import DataConfig, FederatedData, Split, client_ids
from bouquet.data.folder import folder
from bouquet.data.images import cifar10, emnist_writers, fashion_mnist, mnist, mnist_writers
from bouquet.data.own import own_data
from bouquet.data.partitions import downsampled, split_clients
from bouquet.data.sensors import har, har_features, uci_har, vehicle
from bouquet.data.targets import kind_of
from bouquet.data.text import movielens, shakespeare, stackoverflow
from bouquet.imports import is_path

Floats = NDArray[np.float64]
Loader = Callable[..., FederatedData]  # of a config, a seed and a dtype


@dataclass(frozen=True)
class DataSet:
    """A data set's entry in the registry.

    Parameters
    ----------
    name : str
        What ``data.name`` calls it.
    doc : str
        What it is, in one line.
    natural : bool
        Whether it has clients of its own, so that ``data.partition`` says nothing.
    model : str
        The model used when none is named.
    loader : callable
        From a config, a seed and a dtype to the data.
    alone : bool
        Whether the loader takes the clients to load and opens nobody else's files.
    """

    name: str
    doc: str
    natural: bool
    model: str
    loader: Loader
    alone: bool = False


def data_set(name: str) -> DataSet:
    """The data set of a name: one of ours, or what a function of the user's own gives."""
    if is_path(name):
        return DataSet(name, "your own, by a function", natural=True, model="mlp", loader=own_data)
    return DATASETS[name]


def load(
    config: DataConfig, seed: int, dtype: torch.dtype, only: Sequence[str] | None = None
) -> FederatedData:
    """The data set a config names; the same arguments give the same data.

    Parameters
    ----------
    config : DataConfig
        The keys under ``data``.
    seed : int
        Decides the draws of generated data, the partition and the clients' splits.
    dtype : torch.dtype
        Of the inputs (and of a quadratic problem's optima); text is int64.
    only : sequence of str, optional
        The clients to load, on a device; of ``data.name=folder`` nobody else's files are opened.
    """
    entry = data_set(config.name)
    _refuse_sizes(config, entry)
    state = random.getstate()  # importing scikit-learn or datasets draws from it
    try:
        if only is None:
            return _usable(entry.loader(config, seed, dtype), config)
        # What depends on all clients, such as a partition, needs them all for a moment.
        found = entry.loader(config, seed, dtype, *[only] * entry.alone)
        return _usable(found.restricted(only), config)
    finally:
        random.setstate(state)


def _refuse_sizes(config: DataConfig, entry: DataSet) -> None:
    """Refuse sizes where clients have the examples they have, and numbers that say nothing."""
    if config.sizes != "auto" and entry.natural:
        raise BadInput(
            f"data.sizes must be 'auto' for {config.called}, whose clients have what is theirs, "
            f"not {config.sizes!r}."
        )
    for name, value in (("size-mean", config.size_mean), ("size-std", config.size_std)):
        if config.sizes == "auto" and value:
            raise BadInput(
                f"data.{name} must be 0 unless data.sizes is 'lognormal', not {value:g}."
            )


def _usable(found: FederatedData, config: DataConfig) -> FederatedData:
    """The data, unless an input is missing or infinite, also by what its type can hold."""
    if found.targets != kind_of(config):
        raise BadInput(
            f"data.labels must be {found.targets!r}, as data.name {config.name!r} has them, "
            f"not {config.labels!r}."
        )
    if not found.y.isfinite().all():
        raise BadInput(f"data.name {config.name!r} has a y that is infinite in {found.y.dtype}.")
    refuse_gaps(config, found.x.numpy(), f"data.name {config.name!r}, in {found.x.dtype}")
    return found


def digits(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """Scikit-learn's 1,797 handwritten digits: 8x8 pixels from 0 to 1, as 64 features."""
    # Importing sklearn.datasets costs more than all else a small run does; its file is enough.
    package = find_spec("sklearn")
    assert package is not None  # one of our dependencies
    home = Path(package.origin or "").parent
    with gzip.open(home / "datasets/data/digits.csv.gz", "rt", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",")
    x = torch.from_numpy(table[:, :-1] / 16).to(dtype)
    return shared_out(config, seed, x, table[:, -1].astype(np.int64), 10)


def synthetic(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    r"""Synthetic(γ, β) of Deng et al. (APFL, §6.1), after Li et al. (FedProx).

    Client i labels :math:`x \sim N(\nu_i, \Sigma)`, :math:`\Sigma_{kk} = k^{-1.2}`, by
    :math:`\arg\max(W_i^\top x + b_i)`, where :math:`W_i, b_i \sim N(\mu_i, 1)`,
    :math:`\mu_i \sim N(0, \gamma)`, :math:`\nu_i \sim N(V_i, 1)` and
    :math:`V_i \sim N(0, \beta)`; the second argument of N is a variance.

    Notes
    -----
    The text leaves room in three places.

    - :math:`\mu_i` is a vector here, one mean per class for both :math:`W_i` and
      :math:`b_i`, as the paper's bold type has it (:math:`V_i`, not bold, is a number).
      Li et al.'s code draws one number per client, which adds the same to every class's
      score and so leaves every label as it was: γ would mean nothing.
    - Their code passes γ and β as standard deviations; the text's N(0, γ) says variance.
      At 0 and 1, the values they use, the two agree.
    - Synthetic(0, 0) is called IID, but by the procedure each client still has its own
      :math:`W_i, b_i, \nu_i`; so it has here, as in Li et al.'s synthetic(0, 0).

    Li et al. draw how many examples a client has; here it is ``data.examples``.
    """
    size, features = config.examples, config.features
    deviations = np.arange(1, features + 1) ** -0.6
    x = torch.empty(config.clients * size, features, dtype=dtype)
    y = torch.empty(len(x), dtype=torch.int64)
    for number in range(config.clients):
        rng = generator(seed, "synthetic", number)
        weights, bias = labeller(config, rng)
        nu = rng.normal(rng.normal(0, config.beta**0.5), 1, features)
        inputs = nu + deviations * rng.standard_normal((size, features))
        own = slice(number * size, (number + 1) * size)
        x[own] = torch.from_numpy(inputs)
        y[own] = torch.from_numpy(np.argmax(inputs @ weights + bias, axis=1))
    shares = np.split(np.arange(len(x)), config.clients)
    shares = downsampled(shares, client_ids(len(shares)), config.downsample, seed)
    clients = split_clients(y.numpy(), shares, config.test_fraction, seed)
    return FederatedData(x, y, clients, config.classes)


def labeller(config: DataConfig, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """One synthetic client's W (features x classes) and b, both around its μ."""
    mu = rng.normal(0, config.gamma**0.5, config.classes)
    return rng.normal(mu, 1, (config.features, config.classes)), rng.normal(mu, 1)


def quadratic(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """Client k's loss is ½(w − c)ᵀA(w − c), from a JSON file of A and c for every client.

    The file has ``{"init": [..], "clients": [{"A": [[..]], "c": [..]}, …]}``. Each client
    counts as one example, the same one to train on and to test.
    """
    file = config.path
    if not file:
        raise BadInput("data.path must name the JSON file of the quadratic problem, not ''.")
    try:
        problem = json.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"data.path {file!r} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadInput(f"data.path {file!r} is not JSON: {error}.") from error
    init = _numbers(problem, "init", 1, file, dtype)
    entries = problem.get("clients")
    if not isinstance(entries, list) or not entries:
        raise BadInput(f"{file}: 'clients' must be a list of at least one client.")
    matrices, optima = [], []
    for client, entry in zip(client_ids(len(entries)), entries, strict=True):
        where = f"{file}, client {client}"
        matrix = _numbers(entry, "A", 2, where, dtype)
        optimum = _numbers(entry, "c", 1, where, dtype)
        size = len(init)
        if matrix.shape != (size, size):
            found = " x ".join(map(str, matrix.shape))
            raise BadInput(f"{where}: 'A' must be {size} x {size}, as 'init' is, not {found}.")
        if len(optimum) != size:
            raise BadInput(f"{where}: 'c' must have {size} numbers, as 'init', not {len(optimum)}.")
        # Not to the last digit: a product such as QᵀDQ is symmetric only up to rounding.
        if (matrix - matrix.T).abs().max() > 1e-9 * matrix.abs().max():
            raise BadInput(f"{where}: 'A' must be symmetric.")
        matrices.append(matrix)
        optima.append(optimum)
    return FederatedData(
        x=torch.stack(matrices).to(dtype),
        y=torch.stack(optima).to(dtype),
        clients={
            client: Split(train=torch.tensor([number]), test=torch.tensor([number]))
            for number, client in enumerate(client_ids(len(entries)))
        },
        classes=0,
        init=init.to(dtype),
    )


def _numbers(table: object, name: str, axes: int, where: str, dtype: torch.dtype) -> Tensor:
    """The float64 vector (one axis) or matrix (two) a JSON object has; finite in dtype too."""
    if not isinstance(table, dict) or name not in table:
        raise BadInput(f"{where}: {name!r} is missing.")
    kind = "a list of numbers" if axes == 1 else "a list of equally long rows of numbers"
    wrong = BadInput(f"{where}: {name!r} must be {kind}, all finite.")
    try:
        array = np.asarray(table[name])
    except ValueError as error:  # rows of different lengths
        raise wrong from error
    if array.ndim != axes or not array.size or array.dtype.kind not in "iuf":
        raise wrong
    values = torch.from_numpy(array.astype(np.float64))
    if not values.to(dtype).isfinite().all():
        raise wrong
    return values


def _entry(
    name: str, doc: str, model: str, loader: Loader, natural: bool = True, alone: bool = False
) -> DataSet:
    return DataSet(name, doc, natural, model, loader, alone)


DATASETS: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        _entry("cifar10", "60,000 colour images 32x32, 10 classes", "cnn", cifar10, natural=False),
        _entry(
            "digits",
            "1,797 handwritten digits, 8x8 pixels, 10 classes; bundled",
            "mlp",
            digits,
            natural=False,
        ),
        _entry(
            "emnist-writers",
            "EMNIST by writer, 62 classes: LEAF's FEMNIST JSON files in data.path",
            "cnn",
            emnist_writers,
        ),
        _entry(
            "fashion-mnist",
            "70,000 pieces of clothing, 28x28, 10 classes",
            "mlp",
            fashion_mnist,
            natural=False,
        ),
        _entry(
            "folder",
            "your own: directories of clients or a CSV file in data.path; see docs/data.md",
            "mlp",
            folder,
            alone=True,
        ),
        _entry("har", "30 people's phones, windows of 6x128 samples, 6 activities", "mlp", har),
        _entry("har-features", "the same, 30 statistics of a window", "linear", har_features),
        _entry("mnist", "70,000 handwritten digits, 28x28", "mlp", mnist, natural=False),
        _entry("mnist-writers", "60,000 digits by their 539 writers, 28x28", "cnn", mnist_writers),
        _entry("movielens", "100,000 film ratings, 1 to 5, by 943 users", "linear", movielens),
        _entry(
            "quadratic",
            "quadratic losses with exact gradients, from the JSON file data.path",
            "vector",
            quadratic,
        ),
        _entry(
            "shakespeare",
            "the next character, by 660 roles of 38 plays",
            "transformer",
            shakespeare,
        ),
        _entry(
            "stackoverflow",
            "the next word, by author: JSON lines in data.path",
            "transformer",
            stackoverflow,
        ),
        _entry(
            "synthetic",
            "synthetic(gamma, beta): each client has its own inputs and labeller",
            "linear",
            synthetic,
        ),
        _entry("uci-har", "30 people, 561 features, 6 activities, in data.path", "linear", uci_har),
        _entry("vehicle", "23 sensors, 100 features, 2 vehicles: vehicle.mat", "linear", vehicle),
    )
}
