"""A model's own random draws, such as dropout's, made to depend on nothing but a seed.

PyTorch draws from one generator for the whole process, which the nodes of an inline simulation
share. Here every draw made while a seed is in force comes from that seed's own generator, so the
same step of the same client draws the same numbers whoever trains beside it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bouquet.core.placement import CPU


class Seeded(TorchDispatchMode):
    """While entered, whatever PyTorch draws on this thread comes from one seed.

    Parameters
    ----------
    seed : int
        From 0 to 2**63 - 1.
    device : torch.device
        Where it draws: a generator draws on its own device alone, and others draw other numbers.
    """

    def __init__(self, seed: int, device: torch.device = CPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator(device).manual_seed(seed)
        self.drew = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Give an operator that draws the generator to draw from."""
        words = kwargs or {}
        if func is torch.ops.aten.native_dropout.default:
            self.drew = True
            return _dropped(*args, **words, generator=self._generator)
        if torch.Tag.nondeterministic_seeded in func.tags:
            seeded = _with_generator(func)
            if seeded is not None:
                self.drew = True
                return seeded(*args, **{**words, "generator": self._generator})
        return func(*args, **words)


def _dropped(
    x: Tensor, p: float, train: bool | None, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Dropout and its mask: on GPUs that is one operator, none of whose forms takes a generator."""
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask


def _with_generator(func: Any) -> Callable[..., Any] | None:
    """The form of an operator that takes a generator; without one it has nothing to draw.

    Fused attention, for example, is marked as random, but draws only on other devices.
    """
    kind = func._overloadname
    beside = "generator" if kind == "default" else f"{kind}_generator"
    for name in (kind, beside):
        one = getattr(func.overloadpacket, name, None)
        if one is not None and any(part.name == "generator" for part in one._schema.arguments):
            return one  # type: ignore[no-any-return]
    return None
