"""A user's own model, by its import path."""

import inspect
from collections import Counter
from collections.abc import Callable

from torch import Tensor, nn

from bouquet.core.errors import BadInput
from bouquet.imports import imported
from bouquet.models.config import Shape
from bouquet.models.vision import with_torchvision

# Makes a module of an example's shape and the number of classes.
Maker = Callable[[Shape, int], nn.Module]


def build_own(path: str, input_shape: Shape, classes: int, make: Maker | None = None) -> nn.Module:
    """Call what ``package.module:name`` names with an example's shape and the classes.

    Only what is installed where the code runs can be named: nothing is fetched, and nothing
    but a name arrives in a message. With ``make`` the name is only what to call it.
    """
    make = make or imported(path, "model.name", with_torchvision)
    if not callable(make):
        raise BadInput(f"model.name {path!r} must name a class or a function, not {make!r}.")
    try:
        inspect.signature(make).bind(input_shape, classes)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"model.name {path!r} must take an example's shape and the number of classes: {error}."
        ) from error
    try:
        module = with_torchvision(lambda: make(input_shape, classes))
    except BadInput:
        raise
    except Exception as error:  # whatever the user's code raises
        shape = " x ".join(map(str, input_shape))
        raise BadInput(
            f"model.name {path!r} fails for examples of shape {shape} and {classes} classes: "
            f"{type(error).__name__}: {error}."
        ) from error
    if not isinstance(module, nn.Module):
        raise BadInput(
            f"model.name {path!r} must give a torch.nn.Module, not {type(module).__name__}."
        )
    _refuse_state(path, module)
    return module


def refuse_output(path: str, output: Tensor, y: Tensor, classes: int) -> None:
    """Refuse a model whose output does not score every class (value, label) of every example."""
    expected = tuple(y.shape) if y.is_floating_point() else (*y.shape, classes)
    if tuple(output.shape) != expected:
        raise BadInput(
            f"model.name {path!r} must give scores of shape {_words(expected)} for {len(y)} "
            f"examples, not {_words(tuple(output.shape))}."
        )


def _refuse_state(path: str, module: nn.Module) -> None:
    """Refuse what a message with the parameters would not carry."""
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise BadInput(
            f"model.name {path!r} must keep nothing but parameters, and has the buffer "
            f"{buffers[0]!r}: use group norm instead of batch norm, and make constants in forward."
        )
    every = list(module.named_parameters(remove_duplicate=False))
    if not every:
        raise BadInput(f"model.name {path!r} must have parameters to train, and has none.")
    repeated = [one for one, count in Counter(id(p) for _, p in every).items() if count > 1]
    for one in repeated:
        tied = [name for name, parameter in every if id(parameter) == one]
        raise BadInput(
            f"model.name {path!r} must not have a parameter under two names, such as "
            f"{tied[0]!r} and {tied[1]!r}: use one of them in both places."
        )


def _words(shape: Shape) -> str:
    return " x ".join(map(str, shape))
