"""What a user's own model does with a batch, found out by asking it."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call

from bouquet.core.batches import share_of
from bouquet.core.chance import Seeded
from bouquet.core.errors import BadInput
from bouquet.core.task import Task
from bouquet.core.trees import Tree
from bouquet.data import FederatedData


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
    with Seeded(0) as seeded:
        once = functional_call(task.module, weights, (x[:2],))
    with Seeded(0):
        again = functional_call(task.module, weights, (x[:2],))
    if not torch.equal(once, again) and not once.isnan().any():
        raise BadInput(
            "The model draws at random in a way that cannot be seeded: it must use torch's own "
            "draws, without a generator of its own."
        )
    known = replace(task, draws=seeded.drew)
    return replace(known, whole=known.draws or _mixes(known, weights, x))


def refuse_single_examples(
    model: str, task: Task, data: FederatedData, batch_size: int, looks: float = 0.0
) -> None:
    """Say early that a model which takes statistics over a batch cannot do with one example.

    ``looks`` is the share of its data that a client looks through besides.
    """
    try:
        task.output(task.initial, data.x[:1])
        task.training_output(task.initial, data.x[:1], seed=0)
    except (RuntimeError, ValueError):
        pass
    else:
        return
    for client, split in data.clients.items():
        count = len(split.train)
        size = min(batch_size or count, count)
        seen = share_of(count, looks or 1.0)
        seen_size = min(size, seen)
        for what, least in (
            (f"a batch of training examples (batch-size {batch_size})", count % size or size),
            ("a batch of the part it looks through", seen % seen_size or seen_size),
            ("its test part", len(split.test)),
            ("its validation part", len(split.validation)),
        ):
            if least == 1:
                raise BadInput(
                    f"model.name {model!r} takes statistics over a batch and fails on one example, "
                    f"but of client {client} {what} has just one."
                )


def _some_weights(task: Task) -> Tree:
    """Weights none of which is 0: a part that starts at 0 would hide what is behind it."""
    rng = torch.Generator().manual_seed(0)
    return {
        name: (value + 0.1 * torch.randn(value.shape, generator=rng)).to(value.dtype)
        for name, value in task.initial.items()
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
