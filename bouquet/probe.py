"""What a user's own model does with a batch, found out by asking it."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bouquet.core.batches import share_of
from bouquet.core.chance import Seeded
from bouquet.core.errors import BadInput
from bouquet.core.task import Task
from bouquet.core.trees import Tree, is_statistic
from bouquet.data import FederatedData
from bouquet.models import changed


def probed(task: Task, x: Tensor) -> Task:
    """The task with what is found out about its model.

    Parameters
    ----------
    task : Task
        A user's model.
    x : Tensor
        The examples there are.
    """
    weights = _some_weights(task)
    before = {name: value.clone() for name, value in task.constants.items()}
    with Seeded(0) as seeded:
        once = task.training_output(weights, x[:2], seed=0)
    with Seeded(0):
        again = task.training_output(weights, x[:2], seed=0)
    for name in sorted(changed(before, task.constants)):
        raise BadInput(
            f"The model's buffer {name!r} is changed in training, but not saved with the model or "
            "not changed by every batch: make it a persistent buffer that is, or leave it as it is."
        )
    if not torch.equal(once, again) and not once.isnan().any():
        raise BadInput(
            "The model draws at random in a way that cannot be seeded: it must use torch's own "
            "draws, without a generator of its own."
        )
    known = replace(task, draws=seeded.drew)
    return replace(known, whole=known.draws or known.whole or _mixes(known, weights, x))


def paired(
    model: str, task: Task, data: FederatedData, batch_size: int, looks: float = 0.0
) -> Task:
    """The task with whether its model can learn from one example.

    Where it cannot, because it takes statistics over a batch, and has to, that is refused early.
    ``looks`` is the share of its data that a client looks through besides.
    """
    learns = not _fails(lambda: task.training_output(task.initial, data.x[:1], seed=0))
    judges = not _fails(lambda: task.output(task.initial, data.x[:1]))
    for client, split in data.clients.items():
        for what, count, works in (
            (f"batch of training examples (batch-size {batch_size})", batch_size, learns),
            ("training part", len(split.train), learns),
            ("part it looks through", share_of(len(split.train), looks), learns),
            ("test part", len(split.test), judges),
            ("validation part", len(split.validation), judges),
        ):
            if count == 1 and not works:
                raise BadInput(
                    f"model.name {model!r} takes statistics over a batch and fails on one example, "
                    f"but of client {client} a {what} has just one."
                )
    return replace(task, paired=not learns)


def _fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except (RuntimeError, ValueError):
        return True
    return False


def _some_weights(task: Task) -> Tree:
    """Weights none of which is 0: a part that starts at 0 would hide what is behind it."""
    rng = torch.Generator().manual_seed(0)
    return {
        name: value
        if is_statistic(name)
        else (value + 0.1 * torch.randn(value.shape, generator=rng)).to(value.dtype)
        for name, value in task.whole_model.items()
    }


def _mixes(task: Task, weights: Tree, x: Tensor) -> bool:
    """Whether what a model says of an example depends on the example beside it.

    The batches have one shape, so all that could differ otherwise, even in rounding, is equal.
    """
    first = x[:1]
    if x.is_floating_point():
        others = [first, first + torch.linspace(0.5, 1.5, first.numel()).reshape(first.shape)]
    else:
        unlike = (x != first).flatten(1).any(dim=1).nonzero().flatten()
        others = [first, x[unlike[:1]]] if len(unlike) else [first, first]
    batches = [torch.cat([first, other.to(x.dtype)]) for other in others]
    learnt = [task.training_output(weights, batch, seed=0)[0] for batch in batches]
    said = [task.output(weights, batch)[0] for batch in batches]
    return not (torch.equal(*learnt) and torch.equal(*said))
