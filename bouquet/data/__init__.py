"""Federated data sets: who holds which examples, and what each client holds out."""

from bouquet.data.federated import DataConfig, FederatedData, Split
from bouquet.data.sources import DATASETS, DataSet, data_set, load

__all__ = ["DATASETS", "DataConfig", "DataSet", "FederatedData", "Split", "data_set", "load"]
