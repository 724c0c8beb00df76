"""A user's own model, by its import path."""

import inspect
from collections import Counter
from collections.abc import Callable

from torch import Tensor, nn

from bouquet.core.errors import BadInput
from bouquet.core.trees import is_statistic
from bouquet.imports import imported
from bouquet.models.config import Shape
from bouquet.models.structure import choices
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


def refuse_output(path: str, output: object, y: Tensor, classes: int) -> None:
    """Refuse a model whose output does not score every class (value, label) of every example."""
    if not isinstance(output, Tensor):
        raise BadInput(
            f"model.output must be {choices(output)}: model.name {path!r} gives "
            f"{type(output).__name__}."
        )
    expected = tuple(y.shape) if y.is_floating_point() else (*y.shape, classes)
    if tuple(output.shape) != expected:
        raise BadInput(
            f"model.name {path!r} must give scores of shape {_words(expected)} for {len(y)} "
            f"examples, not {_words(tuple(output.shape))}."
        )


def _refuse_state(path: str, module: nn.Module) -> None:
    """Refuse what has nothing to train, a buffer of two names, or a name with another meaning.

    A parameter under two names is one parameter, called by the first of them.
    """
    if not any(True for _ in module.parameters()):
        raise BadInput(f"model.name {path!r} must have parameters to train, and has none.")
    buffers = list(module.named_buffers(remove_duplicate=False))
    repeated = [one for one, count in Counter(id(p) for _, p in buffers).items() if count > 1]
    for one in repeated:
        tied = [name for name, tensor in buffers if id(tensor) == one]
        raise BadInput(
            f"model.name {path!r} must not have a buffer under two names, such as "
            f"{tied[0]!r} and {tied[1]!r}: use one of them in both places."
        )
    for what, named in (("parameter", module.named_parameters()), ("buffer", buffers)):
        for name, _ in named:
            if is_statistic(name):
                raise BadInput(
                    f"model.name {path!r} must not have a {what} whose name ends in '~', such as "
                    f"{name!r}."
                )


def _words(shape: Shape) -> str:
    return " x ".join(map(str, shape))
