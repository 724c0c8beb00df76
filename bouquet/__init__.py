"""Federated learning where every client ends up with a model of its own.

>>> import bouquet
>>> run = bouquet.simulate("apfl", data="digits", rounds=20, clients=20)  # doctest: +SKIP
>>> run.summary["personal"]["accuracy"]["mean"]  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bouquet.api import Run, Runs, Table, compare, load, simulate
    from strategies.core.config import key
    from strategies.core.errors import BadInput, RunFailed
    from strategies.core.scheme import Averaging, Model, Round, Scheme, Work
    from strategies.core.trees import Nothing, Tree

__all__ = [
    "Averaging",
    "BadInput",
    "Model",
    "Nothing",
    "Round",
    "Run",
    "RunFailed",
    "Runs",
    "Scheme",
    "Table",
    "Tree",
    "Work",
    "compare",
    "key",
    "load",
    "simulate",
]

# Where each name is. Most of them import PyTorch, which takes seconds: not before it is needed.
_HOMES = {
    "bouquet.api": ("Run", "Runs", "Table", "compare", "load", "simulate"),
    "strategies.core.config": ("key",),
    "strategies.core.errors": ("BadInput", "RunFailed"),
    "strategies.core.scheme": ("Averaging", "Model", "Round", "Scheme", "Work"),
    "strategies.core.trees": ("Nothing", "Tree"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'bouquet' has no attribute {name!r}")
