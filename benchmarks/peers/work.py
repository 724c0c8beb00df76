"""What the adapters share: a workload, its data and network, and what an adapter tells.

Every adapter runs in its peer's own environment, so this needs numpy alone (and PyTorch for
:func:`net`); ``benchmarks/`` must be on the path, for the workloads of ``speed.py``.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
from speed import CLIENTS, EXAMPLES, WORKLOADS

CLASSES, TRAIN = 10, EXAMPLES * 3 // 4


@dataclass(frozen=True)
class Work:
    """One of the workloads of ``speed.py``, for a number of rounds."""

    name: str
    rounds: int
    features: int
    steps: int
    batch: int
    active: int
    model: str

    @classmethod
    def named(cls, name: str, rounds: int) -> "Work":
        """A workload by its name."""
        return cls(name, rounds, **WORKLOADS[name])


@dataclass(frozen=True)
class Outcome:
    """Seconds of every round, gradient steps of all, the shared model's loss before and after."""

    seconds: list[float]
    steps: int
    losses: tuple[float, float]


@dataclass
class Tally:
    """Counts gradient steps where they are taken, and refuses a batch of another size."""

    batch: int
    steps: int = 0

    def count(self, examples: int) -> None:
        """One more step, on a batch of so many examples."""
        if examples != self.batch:
            raise SystemExit(f"a step on {examples} examples, not {self.batch}")
        self.steps += 1


@cache
def data(features: int) -> tuple[np.ndarray, np.ndarray]:
    """Every client's inputs and labels, which one linear rule gives to all: seeded, learnable."""
    rng = np.random.default_rng(0)
    rule = rng.standard_normal((features, CLASSES), np.float32)
    x = rng.standard_normal((CLIENTS, TRAIN, features), np.float32)
    return x, np.argmax(x @ rule, axis=2)


def some(features: int) -> tuple[np.ndarray, np.ndarray]:
    """A few examples of every client, to measure the shared model's loss on."""
    x, y = data(features)
    return x[:, :20].reshape(-1, features), y[:, :20].reshape(-1)


def net(work: Work) -> Any:
    """The workload's network in PyTorch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if work.model == "linear":
        return nn.Linear(work.features, CLASSES)
    if work.model == "mlp":
        return nn.Sequential(
            *(nn.Linear(work.features, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()),
            nn.Linear(200, CLASSES),
        )
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, CLASSES)),
    )


def loss_of(network: Any, work: Work) -> float:
    """The mean loss of a PyTorch network."""
    import torch
    from torch.nn.functional import cross_entropy

    x, y = map(torch.from_numpy, some(work.features))
    with torch.no_grad():
        return float(cross_entropy(network(x), y))


def main(run: Callable[[Work], Outcome], packages: tuple[str, ...]) -> None:
    """``WORKLOAD ROUNDS``: run, refuse what is no FedAvg of that size, tell on the last line."""
    work = Work.named(sys.argv[1], int(sys.argv[2]))
    outcome = run(work)
    expected = work.rounds * work.active * work.steps
    before, after = outcome.losses
    if outcome.steps != expected:
        raise SystemExit(f"{outcome.steps} gradient steps instead of {expected}")
    if len(outcome.seconds) != work.rounds:
        raise SystemExit(f"{len(outcome.seconds)} rounds instead of {work.rounds}")
    if not after < before:
        raise SystemExit(f"the loss went from {before:.4f} to {after:.4f}")
    versions = {package: version(package) for package in packages}
    print(json.dumps({**asdict(outcome), "versions": versions}))
