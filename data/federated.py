"""What a federated data set is: examples, and which client holds which of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strategies.core.config import key


@dataclass(frozen=True)
class DataConfig:
    """The keys under ``data``; which of them count depends on the data set."""

    name: str = key("digits", "the data set", choices=("digits", "quadratic", "synthetic"))
    path: str = key("", "file or directory of a data set that is read from disk")
    clients: int = key(20, "how many clients share the examples", low=1)
    partition: str = key(
        "pathological",
        "how clients share: at random, a few classes each, or by Dirichlet-distributed shares",
        choices=("iid", "pathological", "dirichlet"),
    )
    classes_per_client: int = key(2, "pathological: classes each client has", low=1)
    dirichlet_alpha: float = key(
        0.5, "dirichlet: concentration; the smaller, the less alike", low=0, open_low=True
    )
    test_fraction: float = key(
        0.25, "share of each client's examples held out", low=0, high=0.9, open_low=True
    )
    gamma: float = key(0.5, "synthetic: how much the clients' models differ", low=0)
    beta: float = key(0.5, "synthetic: how much the clients' inputs differ", low=0)
    features: int = key(60, "synthetic: inputs of an example", low=1)
    classes: int = key(10, "synthetic: classes", low=2)
    examples: int = key(100, "synthetic: examples of each client", low=2)


@dataclass(frozen=True)
class Split:
    """One client's examples, as int64 indices into the federation's.

    Parameters
    ----------
    train, test : Tensor
        What the client learns from, and what it is judged on; both ascending.
    """

    train: Tensor
    test: Tensor


@dataclass(frozen=True)
class FederatedData:
    """All examples of all clients, and whose they are.

    Parameters
    ----------
    x : Tensor
        Inputs; the first axis is the example. Of a quadratic problem, the matrices A.
    y : Tensor
        int64 labels; of a quadratic problem, the optima c.
    clients : dict of str to Split
        By client id, in order of the ids.
    classes : int
        How many labels there are; 0 for a quadratic problem.
    init : Tensor, optional
        Where the weights of a quadratic problem start.
    """

    x: Tensor
    y: Tensor
    clients: dict[str, Split]
    classes: int
    init: Tensor | None = None

    def label_counts(self, client: str) -> list[int]:
        """How many training examples of each class a client has; empty without classes."""
        if not self.classes:
            return []
        labels = self.y[self.clients[client].train]
        return torch.bincount(labels, minlength=self.classes).tolist()


def client_ids(count: int) -> list[str]:
    """Ids ``"000"``, ``"001"``, … as wide as the last needs, so text order is number order."""
    width = max(3, len(str(count - 1)))
    return [f"{number:0{width}d}" for number in range(count)]
