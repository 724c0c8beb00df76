"""Federated data sets: who holds which examples, and what each client holds out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bouquet.data.federated import DataConfig, FederatedData, Split
    from bouquet.data.sources import DATASETS, DataSet, data_set, load

__all__ = ["DATASETS", "DataConfig", "DataSet", "FederatedData", "Split", "data_set", "load"]


def __getattr__(name: str) -> Any:
    # Not before it is needed: data import PyTorch, and the cache of archives does without.
    if name in __all__:
        return getattr(import_module("bouquet.data.sources"), name)
    raise AttributeError(f"module 'bouquet.data' has no attribute {name!r}")
