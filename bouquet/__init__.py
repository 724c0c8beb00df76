"""Federated learning where every client ends up with a model of its own.

>>> import bouquet
>>> run = bouquet.simulate("apfl", data="digits", rounds=20, clients=20)  # doctest: +SKIP
>>> run.summary["personal"]["accuracy"]["mean"]  # doctest: +SKIP
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bouquet.api import Run, Runs, Table, compare, load, simulate
    from bouquet.core.config import key
    from bouquet.core.errors import BadInput, RunFailed
    from bouquet.core.scheme import Averaging, Model, Round, Scheme, Work
    from bouquet.core.trees import Nothing, Tree
    from bouquet.sweeps import Sweep, sweep

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
    "Sweep",
    "Table",
    "Tree",
    "Work",
    "compare",
    "key",
    "load",
    "simulate",
    "sweep",
]

# In a checkout and in Flower's bundle these folders stand beside this one; a wheel has them in it.
_ROOT = Path(__file__).parent.parent
if not (Path(__file__).parent / "strategies").exists() and (_ROOT / "strategies").exists():
    __path__.append(str(_ROOT))

# Where each name is. Most of them import PyTorch, which takes seconds: not before it is needed.
_HOMES = {
    "bouquet.api": ("Run", "Runs", "Table", "compare", "load", "simulate"),
    "bouquet.core.config": ("key",),
    "bouquet.core.errors": ("BadInput", "RunFailed"),
    "bouquet.core.scheme": ("Averaging", "Model", "Round", "Scheme", "Work"),
    "bouquet.core.trees": ("Nothing", "Tree"),
    "bouquet.sweeps": ("Sweep", "sweep"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'bouquet' has no attribute {name!r}")
