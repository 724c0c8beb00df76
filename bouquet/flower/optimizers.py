"""Flower's server optimizers, fed a mean that is already there."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi


class Given(FedAvg):
    """FedAvg whose mean was formed elsewhere.

    Flower's optimizers call FedAvg's ``aggregate_train`` for the mean; standing before FedAvg
    among their bases, this class answers in its place.
    """

    mean: ArrayRecord

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean it was given."""
        return self.mean, None


class Momentum(FedAvgM, Given):
    """FedAvgM on a given mean."""


class Adam(FedAdam, Given):
    """FedAdam on a given mean."""


class Yogi(FedYogi, Given):
    """FedYogi on a given mean."""


def flower_step(
    how: Any,
    round_: int,
    w: ArrayRecord,
    mean: ArrayRecord,
    moment1: ArrayRecord,
    moment2: ArrayRecord,
) -> tuple[ArrayRecord, ArrayRecord, ArrayRecord]:
    """New weights and moments; ``how`` is a ``ServerOptimizer``."""
    if how.kind == "momentum":
        sgd = Momentum(server_learning_rate=how.lr, server_momentum=how.beta1)
        names = list(w)
        sgd.mean, sgd.current_arrays = mean, w
        sgd.momentum_vector = [moment1[name].numpy() for name in names] if moment1 else None
        new, _ = sgd.aggregate_train(round_, [])
        assert new is not None
        kept = dict(zip(names, sgd.momentum_vector or [], strict=False))
        return new, _record(kept), ArrayRecord()
    kind = Adam if how.kind == "adam" else Yogi
    optimizer = kind(eta=how.lr, beta_1=how.beta1, beta_2=how.beta2, tau=how.tau)
    optimizer.mean = mean
    optimizer.current_arrays = {name: array.numpy() for name, array in w.items()}
    optimizer.m_t = {name: array.numpy() for name, array in moment1.items()} or None
    optimizer.v_t = {name: array.numpy() for name, array in moment2.items()} or None
    new, _ = optimizer.aggregate_train(round_, [])
    assert new is not None
    return new, _record(optimizer.m_t or {}), _record(optimizer.v_t or {})


def _record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
