"""A user's own augmentation: looked up, tried before anything is trained, and applied.

It is a function of a batch's inputs and a ``torch.Generator``, and gives inputs of the same shape
and type. Every client has a generator of its own in every round, and what is given is the batch
without its padding, on the CPU: the result depends on no device, nor on who trains beside it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.placement import CPU
from bouquet.core.seeding import generator
from bouquet.core.task import Batch
from bouquet.imports import imported, is_path

Augment = Callable[[Tensor, torch.Generator], Tensor]


def augment_of(name: str) -> Augment | None:
    """The function that the key ``augment`` names; none for none."""
    if not is_path(name):
        return None
    found: Any = imported(name, "augment")
    if not callable(found) or isinstance(found, type):
        raise BadInput(f"augment {name!r} must name a function, not {found!r}.")

    def augment(x: Tensor, draws: torch.Generator) -> Tensor:
        try:
            changed: Any = found(x, draws)
        except Exception as error:  # whatever the user's code raises
            raise BadInput(
                f"augment {name!r} fails on inputs of shape {tuple(x.shape)}: "
                f"{type(error).__name__}: {error}."
            ) from error
        if not isinstance(changed, Tensor) or (changed.shape, changed.dtype) != (x.shape, x.dtype):
            raise BadInput(
                f"augment {name!r} must give inputs of the shape and type of its own, "
                f"{_look(x)}, not {_look(changed)}."
            )
        return changed

    return augment


def try_augment(name: str, augment: Augment | None, x: Tensor) -> None:
    """Let a function change one example and two, and refuse what it must not do."""
    if augment is None:
        return
    for some in (x[:1], x[:2]):
        first, again = (augment(some.clone(), _draws(0)) for _ in range(2))
        if not bool(first.isfinite().all()):
            raise BadInput(f"augment {name!r} must give finite inputs, not NaN or infinity.")
        if not torch.equal(first, again):
            raise BadInput(
                f"augment {name!r} must draw from the generator it is given alone: with the same "
                "one it gives the same inputs, or no run could be repeated."
            )


def augmented(
    batches: Batch, augment: Augment, clients: Sequence[str], seeds: tuple[int | str, ...]
) -> Batch:
    """Batches with their inputs changed; the axes are client, step, place.

    Parameters
    ----------
    batches : Batch
        Of a cohort, padded at the end.
    augment : callable
        Changes the inputs of one batch.
    clients : sequence of str
        Whose batches they are.
    seeds : tuple of int and str
        The seed, the purpose and the round: with the client's id, all that draws depend on.
    """
    x = batches.x.to(CPU, copy=True)
    real = (batches.weight.to(CPU) > 0).sum(dim=2).tolist()
    for place, client in enumerate(clients):
        draws = _draws(int(generator(*seeds, client, "augment").integers(2**63)))
        for step, count in enumerate(real[place]):
            if count:
                x[place, step, :count] = augment(x[place, step, :count].clone(), draws)
    return batches._replace(x=x.to(batches.x.device))


def _draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _look(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
