"""Trees of tensors: weights by parameter name, and the arithmetic schemes need.

Beside its weights a model may keep *statistics*, such as batch norm's running means: numbers that
no gradient moves. They are in the same trees under names that end in ``~``: means, splits, files
and messages treat them like weights; inner products, norms and gradient steps leave them alone.

A *record* is a ``NamedTuple`` whose fields are tensors, trees or forests (a tree for
each client), such as ``Personal(v=..., alpha=...)``. Everything that is stored or sent is
a record, and :func:`flatten` and :func:`unflatten` turn it into one tree and back.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

import torch
from torch import Tensor

from bouquet.core.placement import widest

Tree = dict[str, Tensor]
Forest = dict[str, Tree]
R = TypeVar("R", bound=tuple[Any, ...])


class Nothing(NamedTuple):
    """The record of a scheme that keeps, sends or receives nothing."""


# The end of a statistic's name.
MARK = "~"


def is_statistic(name: str) -> bool:
    """Whether a name is a statistic's, in a tree or a flattened record."""
    return name.endswith(MARK)


def plain(name: str) -> str:
    """What PyTorch calls a parameter or a statistic."""
    return name.removesuffix(MARK)


def without_statistics(tree: Tree) -> Tree:
    """The weights alone."""
    return {name: value for name, value in tree.items() if not is_statistic(name)}


def mix(one: Tree, other: Tree, share: Tensor | float) -> Tree:
    """``share * one + (1 - share) * other``, exact at both ends."""
    return {name: torch.lerp(other[name], one[name], share) for name in one}


def toward(here: Tree, there: Tree, share: float) -> Tree:
    """A part of the way to somewhere, or beyond it; its statistics are those of there.

    Beyond it, a variance could be negative.
    """
    moved = mix(without_statistics(there), here, share)
    return {name: moved.get(name, value) for name, value in there.items()}


def add(one: Tree, other: Tree) -> Tree:
    """``one + other``, with the statistics of one: of a change there are none."""
    return {n: value if is_statistic(n) else value + other[n] for n, value in one.items()}


def dot(one: Tree, other: Tree) -> Tensor:
    """The inner product ⟨one, other⟩ of the weights, which autograd can differentiate."""
    return torch.stack([(one[n] * other[n]).sum() for n in without_statistics(one)]).sum()


def half_square(one: Tree, other: Tree) -> Tensor:
    """½ ‖one − other‖² of the weights, which autograd can differentiate."""
    gaps = [(one[n] - other[n]).square().sum() for n in without_statistics(one)]
    return 0.5 * torch.stack(gaps).sum()


def detach(tree: Tree) -> Tree:
    """The same values, as constants for autograd."""
    return {name: value.detach() for name, value in tree.items()}


def distance(one: Tree, other: Tree) -> Tensor:
    """Euclidean distance between two trees."""
    return norm({name: one[name] - other[name] for name in one})


def norm(tree: Tree) -> Tensor:
    """Euclidean norm of all the weights together, which is 0 for an empty tree."""
    # Squares of float32 overflow.
    sizes = [
        torch.linalg.vector_norm(value, dtype=widest(value.device))
        for value in without_statistics(tree).values()
    ]
    if not sizes:
        return torch.zeros((), dtype=torch.float64)
    whole: Tensor = torch.linalg.vector_norm(torch.stack(sizes))
    return whole


def size_in_bytes(tree: Tree) -> int:
    """Bytes the values take."""
    return sum(value.numel() * value.element_size() for value in tree.values())


def flatten(record: tuple[Any, ...]) -> Tree:
    """A record as one tree: the field ``v`` becomes ``v/<parameter>``, a tensor its name.

    A forest's field becomes ``<field>/<client>/<parameter>``.
    """
    flat: Tree = {}

    def put(place: str, value: Tensor | dict[str, Any]) -> None:
        if isinstance(value, Tensor):
            flat[place] = value
        else:
            for name, part in value.items():
                put(f"{place}/{name}", part)

    for field, value in zip(_fields(type(record)), record, strict=True):
        put(field, value)
    return flat


def unflatten(record: type[R], flat: Tree) -> R:
    """The record that :func:`flatten` made the tree from."""
    hints = get_type_hints(record)
    values: list[Tensor | Tree | Forest] = []
    for field in _fields(record):
        if hints[field] is Tensor:
            values.append(flat[field])
            continue
        start = f"{field}/"
        # Sorted, because sums over a tree are taken in its order and a file has its own.
        names = sorted(name for name in flat if name.startswith(start))
        tree = {name.removeprefix(start): flat[name] for name in names}
        values.append(_planted(tree) if hints[field] == Forest else tree)
    return record(*values)


def _planted(tree: Tree) -> Forest:
    """A tree of ``<client>/<parameter>`` as a forest; parameters' names have no slash."""
    forest: Forest = {}
    for name, value in tree.items():
        client, _, parameter = name.rpartition("/")
        forest.setdefault(client, {})[parameter] = value
    return forest


@functools.cache
def extended(record: type, **fields: Any) -> Any:
    """A record type with more fields at its end, by name and type; made once."""
    hints = get_type_hints(record)
    known = [(name, hints[name]) for name in _fields(record)]
    return NamedTuple(record.__name__, [*known, *fields.items()])


def rows(tree: Tree, order: Sequence[int]) -> Tree:
    """Some clients' rows of stacked trees, in an order."""
    return {name: value[list(order)] for name, value in tree.items()}


def mean_of_rows(tree: Tree) -> Tree:
    """The mean over the first axis, formed in double precision."""
    return {name: value.double().mean(dim=0).to(value.dtype) for name, value in tree.items()}


def stack_trees(trees: Sequence[Tree]) -> Tree:
    """Trees of several clients as one, with the client as the first axis; one's without a copy."""
    if len(trees) == 1:
        return {name: value.unsqueeze(0) for name, value in trees[0].items()}
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def stack(records: Sequence[R]) -> R:
    """Records of several clients as one, with the client as the first axis."""
    return unflatten(type(records[0]), stack_trees([flatten(record) for record in records]))


def pick(record: R, index: int) -> R:
    """One client's record out of a stack, with memory of its own.

    It is laid out row by row whatever the stack's layout: float sums depend on the
    layout, and a state must give the same ones whether it was on disk or in memory.
    """
    row_by_row = torch.contiguous_format
    return unflatten(
        type(record),
        {k: v[index].clone(memory_format=row_by_row) for k, v in flatten(record).items()},
    )


def finite(record: tuple[Any, ...], count: int) -> Tensor:
    """For each of the ``count`` clients of a stack: whether all its values are finite."""
    ok = torch.ones(count, dtype=torch.bool)
    values = list(flatten(record).values())
    if not values:
        return ok
    # The sum of a client's values is finite only if every one of them is, but
    # finite values may overflow in it: only those clients need the slower look.
    sums = [value.reshape(count, -1).sum(dim=1).isfinite() for value in values]
    for place, index in (~torch.stack(sums).cpu()).nonzero().tolist():
        ok[index] &= bool(values[place][index].isfinite().all())
    return ok


def is_finite(tree: Tree) -> bool:
    """Whether all of a tree is finite."""
    # As in :func:`finite`: a sum is quick, and only where it is not finite it takes a second look.
    return all(
        bool(value.sum().isfinite()) or bool(value.isfinite().all()) for value in tree.values()
    )


def fingerprint(tree: Tree) -> str:
    """A short name of a model's shape: parameter names, shapes and types, not values."""
    return digest(f"{k}:{v.dtype}:{tuple(v.shape)}".encode() for k, v in sorted(tree.items()))[:16]


def sha256(tree: Tree) -> str:
    """The hash of every name, type, shape and value."""
    return digest(
        part
        for name, value in sorted(tree.items())
        for part in (f"{name}:{value.dtype}:{tuple(value.shape)}".encode(), raw_bytes(value))
    )


def raw_bytes(value: Tensor) -> bytes:
    """The value's memory, row by row."""
    return value.detach().contiguous().numpy().tobytes()


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 over parts, each told apart from the next by its length."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8))
        total.update(part)
    return total.hexdigest()


def _fields(record: type[tuple[Any, ...]]) -> tuple[str, ...]:
    return cast(tuple[str, ...], record._fields)  # type: ignore[attr-defined]  # a NamedTuple's
