"""The one place that imports torchvision."""

import importlib
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TypeVar

import torch

T = TypeVar("T")


def torchvision() -> ModuleType:
    """The torchvision package, also where its build does not fit torch's.

    Models, transforms and data sets can be imported the ordinary way after this call.
    """
    return with_torchvision(lambda: importlib.import_module("torchvision"))


def with_torchvision(call: Callable[[], T]) -> T:
    """What a call gives that imports torchvision, also where its build does not fit torch's.

    Torchvision's CUDA build (the one in the package registry) cannot load its operators
    beside a CPU build of torch, and its import stops at the first one without a schema.
    Declaring the two it asks for is enough; then the call is made once more.
    """
    try:
        return call()
    except (ImportError, RuntimeError) as error:
        if not _lacks_schemas(error):
            raise
        _declare_schemas()
        return call()


def _lacks_schemas(error: BaseException | None) -> bool:
    """Whether that is behind an error, which a library that imports torchvision may wrap."""
    if error is None or "torchvision::nms" in str(error):
        return error is not None
    return _lacks_schemas(error.__cause__ or error.__context__)


@cache  # keeps the library alive: its schemas go when it does
def _declare_schemas() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)
    return library
