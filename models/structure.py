"""A model as structure and weights apart, and what of its output counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bouquet.core.errors import BadInput


def emptied(module: nn.Module) -> nn.Module:
    """The module without its weights, changed in place.

    Parameters are on meta, and one that is used under two names stays one. Buffers stay as they
    are.
    """
    done: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is None:
                continue
            if id(value) not in done:
                empty = nn.Parameter(value.detach().to("meta"), value.requires_grad)
                done[id(value)] = empty
            part._parameters[name] = done[id(value)]
    return module


def filled(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The module with other weights, changed in place; a tied one is there under one name.

    Raises
    ------
    RuntimeError
        If they are another model's.
    """
    names = {name for name, _ in module.named_parameters()}
    if not names <= weights.keys():
        raise RuntimeError(f"weights are missing, such as {min(names - weights.keys())}")
    if module.load_state_dict(weights, strict=False).unexpected_keys:
        raise RuntimeError("there are weights of another model")
    return module


def take_part(module: nn.Module, part: str) -> None:
    """Let a model whose output is an object give one part of it."""
    if part:
        module.register_forward_hook(_Part(part))


@dataclass(frozen=True)
class _Part:
    name: str

    def __call__(self, module: nn.Module, given: object, output: Any) -> Tensor:
        found = parts(output).get(self.name)
        if found is None:
            raise BadInput(
                f"model.output must be {choices(output)} for a model that gives "
                f"{type(output).__name__}, not {self.name!r}."
            )
        return found


def parts(output: object) -> dict[str, Tensor]:
    """The tensors in a model's output, by their names."""
    if isinstance(output, Tensor):
        return {}
    named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    if hasattr(output, "_asdict"):
        named = output._asdict()
    return {str(name): value for name, value in named.items() if isinstance(value, Tensor)}


def choices(output: object) -> str:
    """What ``model.output`` may be for such an output, in words."""
    if isinstance(output, Tensor):
        return "empty"
    found = sorted(parts(output))
    return f"one of {', '.join(map(repr, found))}" if found else "the name of a tensor in it"
