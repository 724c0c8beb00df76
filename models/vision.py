"""The one place that imports torchvision."""

import importlib
from functools import cache
from types import ModuleType

import torch


def torchvision() -> ModuleType:
    """The torchvision package, also where its build does not fit torch's.

    Torchvision's CUDA build (the one in the package registry) cannot load its operators
    beside a CPU build of torch, and its import stops at the first one without a schema.
    Declaring the two it asks for is enough for models, transforms and data sets, which
    can be imported the ordinary way after this call.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _declare_schemas()
        return importlib.import_module("torchvision")


@cache  # keeps the library alive: its schemas go when it does
def _declare_schemas() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    return library
