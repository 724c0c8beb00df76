"""What a federated data set is: examples, and which client holds which of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bouquet.core.config import key
from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES, SEVERAL, VALUES
from bouquet.core.seeding import generator
from bouquet.data.prepare import Preparation, preparation, size_warning, value_warning
from bouquet.imports import called


@dataclass(frozen=True)
class DataConfig:
    """The keys under ``data``; which of them count depends on the data set."""

    name: str = key(
        "digits",
        "the data set",
        own=True,
        choices=(
            "cifar10",
            "digits",
            "emnist-writers",
            "fashion-mnist",
            "folder",
            "har",
            "har-features",
            "mnist",
            "mnist-writers",
            "movielens",
            "quadratic",
            "shakespeare",
            "stackoverflow",
            "synthetic",
            "uci-har",
            "vehicle",
        ),
    )
    path: str = key("", "file or directory to read the data set from, instead of the cache")
    clients: int = key(20, "how many clients share the examples", low=1)
    max_clients: int = key(
        0, "data sets with clients of their own: at most so many, drawn by the seed; 0 = all", low=0
    )
    partition: str = key(
        "pathological",
        "how clients share: at random, a few classes each, by Dirichlet-distributed shares, as in "
        "the Per-FedAvg paper, or natural (only data sets with clients of their own, always)",
        choices=("iid", "pathological", "dirichlet", "perfedavg", "natural"),
    )
    classes_per_client: int = key(2, "pathological: classes each client has", low=1)
    class_choice: str = key(
        "random",
        "pathological: which classes a client has: drawn; client k has k, k+1 and so on (FedU's "
        "code); or as far apart as can be, such as 0 and 5 of ten (APFL's code)",
        choices=("random", "consecutive", "spread"),
    )
    dirichlet_alpha: float = key(
        0.5, "dirichlet: concentration; the smaller, the less alike", low=0, open_low=True
    )
    images: int = key(
        0,
        "perfedavg: a; half the clients have a examples of each class in the first half, the "
        "others a/2 of one of those and 2a of one of the rest; 0 = as many as there are",
        low=0,
    )
    sizes: str = key(
        "auto",
        "how many examples clients get: as the partition has it, or log-normal, for iid, "
        "pathological and dirichlet (FedU)",
        choices=("auto", "lognormal"),
    )
    size_mean: float = key(
        0.0, "lognormal: examples of a client on average; 0 = as many as there are", low=0
    )
    size_std: float = key(
        0.0, "lognormal: their standard deviation; 0 = 0.56 of the mean, as in FedU", low=0
    )
    downsample: float = key(
        0.0, "share of their examples that half the clients lose (FedU: 0.8)", low=0, high=0.99
    )
    test_fraction: float = key(
        0.25, "share of each client's examples held out", low=0, high=0.9, open_low=True
    )
    client_column: str = key("client", "CSV: the column that says whose a row is")
    label_column: str = key(
        "label", "CSV: the column of classes; of values or several labels, columns with commas"
    )
    columns: str = key("", "CSV: the columns of inputs, separated by commas; empty = all others")
    labels: str = key(
        "auto",
        "your own data: refuse labels that look like measurements, or take every different one "
        "for a class, for values to predict (regression), or for several labels of an example",
        choices=("auto", CLASSES, VALUES, SEVERAL),
    )
    categories: str = key(
        "refuse",
        "CSV: columns of words are refused, or become a column of 0 and 1 for each word, or the "
        "word's number, for models that embed it",
        choices=("refuse", "one-hot", "index"),
    )
    missing: str = key(
        "refuse",
        "inputs that are missing (empty, NA, NaN) are refused, or become the mean of the client's "
        "own training examples, or 0",
        choices=("refuse", "mean", "zero"),
    )
    scale: str = key(
        "none",
        "bring every input to a like size, by the client's own training examples: mean 0 and "
        "deviation 1, median 0 and quartiles 1 apart, or from 0 to 1",
        choices=("none", "standard", "robust", "minmax"),
    )
    gamma: float = key(0.5, "synthetic: how much the clients' models differ", low=0)
    beta: float = key(0.5, "synthetic: how much the clients' inputs differ", low=0)
    features: int = key(60, "synthetic: inputs of an example", low=1)
    classes: int = key(10, "synthetic: classes", low=2)
    examples: int = key(100, "synthetic: examples of each client", low=2)

    @property
    def called(self) -> str:
        """What people and folders call the data set."""
        return called(self.name)


# One for all clients that hold nothing out, of whom there may be a hundred thousand.
_NONE = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Split:
    """One client's examples, as int64 indices into the federation's.

    Parameters
    ----------
    train, test : Tensor
        What the client learns from, and what it is judged on; both ascending.
    validation : Tensor
        What it may choose between models by; empty unless held out of ``train``.
    """

    train: Tensor
    test: Tensor
    validation: Tensor = field(default_factory=lambda: _NONE)


@dataclass(frozen=True)
class FederatedData:
    """All examples of all clients, and whose they are.

    Parameters
    ----------
    x : Tensor
        Inputs; the first axis is the example. Of a quadratic problem, the matrices A.
    y : Tensor
        int64 labels, one an example or, of text, one a position; of values or several labels (1
        or 0), real numbers, a row an example; of a quadratic problem, the optima c.
    clients : dict of str to Split
        By client id, in order of the ids.
    classes : int
        How many labels, or values to predict, there are; 0 for a quadratic problem.
    init : Tensor, optional
        Where the weights of a quadratic problem start.
    names : tuple of str
        What the classes, or values, are called; their numbers where nobody says.
    inputs : tuple of str
        What the inputs are called, where they have names: columns of a table.
    prepared : dict of str to Preparation
        How each client's inputs were made of what it measured; empty where they are just that.
    targets : str
        What is predicted: ``classes``, ``values``, or ``several`` labels an example.
    """

    x: Tensor
    y: Tensor
    clients: dict[str, Split]
    classes: int
    init: Tensor | None = None
    names: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    prepared: dict[str, Preparation] = field(default_factory=dict)
    targets: str = CLASSES
    _dealt: dict[tuple[int, int], dict[str, None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", numbered(self.classes))
        if len(self.names) != self.classes:
            raise ValueError(f"{len(self.names)} names for {self.classes} classes")

    def dealt(self, place: int, nodes: int) -> Collection[str]:
        """The clients of one of some nodes, in order: every n-th, so that nodes are alike.

        Worked out once, for a node asks for every message.
        """
        if (place, nodes) not in self._dealt:
            self._dealt[place, nodes] = dict.fromkeys(sorted(self.clients)[place::nodes])
        return self._dealt[place, nodes].keys()

    def label_counts(self, client: str) -> list[int]:
        """How many training examples of each class or label a client has; empty without."""
        if not self.classes or self.targets == VALUES:
            return []
        labels = self.y[self.clients[client].train]
        if self.targets == SEVERAL:
            return labels.sum(dim=0).long().tolist()
        return torch.bincount(labels.flatten(), minlength=self.classes).tolist()

    def size_warning(self, scale: str) -> str:
        """What is odd about the size of inputs and values, in words; empty for nothing."""
        values = value_warning(self.y) if self.targets == VALUES else ""
        return " ".join(filter(None, (size_warning(self.x, scale), values)))

    def holding_out(
        self, fraction: float, seed: int, folds: int = 0, fold: int = 0
    ) -> "FederatedData":
        """The same data with a validation part taken from each client's training part.

        What a client holds out depends on the seed, its id and its own examples alone: a
        fraction, or one of so many ``folds`` of nearly equal size that have none in common.
        """
        if not fraction and not folds:
            return self
        clients = {}
        for client, split in self.clients.items():
            size = len(split.train)
            if folds > size:
                raise BadInput(
                    f"validation-folds must be at most {size}, the training examples of client "
                    f"{client}, not {folds}."
                )
            if size < 2:
                raise BadInput(
                    f"validation must be 0: client {client} has {size} training example, and "
                    "holding one out would leave none."
                )
            order = torch.from_numpy(generator(seed, "validation", client).permutation(size))
            if folds:
                first, last = size * fold // folds, size * (fold + 1) // folds
            else:
                first, last = 0, min(size - 1, max(1, round(size * fraction)))
            rest = torch.cat([order[:first], order[last:]])
            clients[client] = replace(
                split,
                train=split.train[rest.sort().values],
                validation=split.train[order[first:last].sort().values],
            )
        return replace(self, clients=clients)

    def preparing(self, scale: str, missing: str) -> "FederatedData":
        """The same data as models take them: ``data.missing`` filled, ``data.scale`` applied.

        How, each client's training part alone decides: hold out before.
        """
        if scale != "none" and not (self.classes and self.x.is_floating_point()):
            what = "whole numbers, which stand for words" if self.classes else "a quadratic problem"
            raise BadInput(f"data.scale must be 'none' for {what}, not {scale!r}.")
        if (scale, missing) == ("none", "refuse") or not self.x.is_floating_point():
            return self
        x, prepared = self.x.clone(), {}
        for client, split in self.clients.items():
            prepared[client] = preparation(self.x[split.train], scale, missing)
            for part in (split.train, split.validation, split.test):
                x[part] = prepared[client](self.x[part])
        return replace(self, x=x, prepared=prepared)

    def restricted(self, only: Sequence[str]) -> "FederatedData":
        """Some clients and their examples, nobody else's; ids that are not there are refused."""
        for client in only:
            if client not in self.clients:
                raise BadInput(f"There is no client {client!r} among the {len(self.clients)}.")
        splits = {client: self.clients[client] for client in sorted(set(only))}
        parts = [part for split in splits.values() for part in (split.train, split.test)]
        kept = torch.unique(torch.cat(parts)) if parts else torch.zeros(0, dtype=torch.int64)
        places = {
            client: Split(
                torch.searchsorted(kept, split.train), torch.searchsorted(kept, split.test)
            )
            for client, split in splits.items()
        }
        return replace(self, x=self.x[kept], y=self.y[kept], clients=places)


def numbered(classes: int) -> tuple[str, ...]:
    """What classes without names are called."""
    return tuple(map(str, range(classes)))


def client_ids(count: int) -> list[str]:
    """Ids ``"000"``, ``"001"``, … as wide as the last needs, so text order is number order."""
    width = max(3, len(str(count - 1)))
    return [f"{number:0{width}d}" for number in range(count)]
