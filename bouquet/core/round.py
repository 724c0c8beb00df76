"""How a round is put together in memory: who receives what, and what becomes of the uploads.

The nodes, the server and whoever plays a round without either use the same functions.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bouquet.core.placement import widest
from bouquet.core.scheme import AnyScheme, Federation, Round, Work
from bouquet.core.trees import Tree, fingerprint, flatten, stack_trees, unflatten


def rows_of(scheme: AnyScheme, payload: Any, places: Sequence[int]) -> Any:
    """What some of the clients received: their rows of what is each client's own."""
    chosen = torch.tensor(places)
    return _changed(scheme, payload, lambda value: value[chosen])


def row_of(scheme: AnyScheme, payload: Any, place: int) -> Any:
    """What one of the clients received, without the axis of clients."""
    return _changed(scheme, payload, lambda value: value[place])


def _changed(scheme: AnyScheme, payload: Any, change: Any) -> Any:
    own = {name: getattr(payload, name) for name in scheme.payload_rows}
    return payload._replace(
        **{
            name: change(part)
            if isinstance(part, Tensor)
            else {key: change(value) for key, value in part.items()}
            for name, part in own.items()
        }
    )


def is_each(scheme: AnyScheme, name: str) -> bool:
    """Whether a tensor of an upload reaches the server one by one instead of as a mean."""
    return name.partition("/")[0] in scheme.upload_rows


def upload_shape(scheme: AnyScheme, server: Any, count: int) -> str:
    """The fingerprint of so many clients' uploads together; nobody's look like nothing."""
    if not count:
        return fingerprint({})
    like = flatten(scheme.upload_like(server))
    each = {n: v.expand(count, *v.shape) for n, v in like.items() if is_each(scheme, n)}
    return fingerprint(like | each)


class Total:
    """Uploads of one chunk of clients after the other: weighted sums, and rows."""

    def __init__(self, scheme: AnyScheme) -> None:
        self._scheme = scheme
        self._sums: Tree = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, upload: Any, weights: Tensor) -> None:
        """Take in a chunk's uploads, stacked, with a weight for each."""
        for name, value in flatten(upload).items():
            if is_each(self._scheme, name):
                self._rows.setdefault(name, []).append(value)
                continue
            self._dtypes[name] = value.dtype
            # Sums over chunks are kept in double so that their number hardly matters.
            wide = widest(value.device)
            sums = self._sums.get(name)
            if sums is None:
                sums = self._sums[name] = value.new_zeros(value.shape[1:], dtype=wide)
            if len(weights) == 1:  # in one pass: large models come one by one
                sums.add_(value[0], alpha=float(weights[0]))
            else:
                sums.add_(torch.tensordot(weights.to(value), value, dims=1))

    def mean(self, weight: float) -> Tree:
        """The mean over all, given the sum of their weights; and their rows."""
        means = {k: (v / weight).to(self._dtypes[k]) for k, v in self._sums.items()}
        return means | {name: torch.cat(parts) for name, parts in self._rows.items()}


@dataclass(frozen=True)
class Part:
    """The uploads of some clients: their weight in all, and their mean and rows."""

    clients: Sequence[str]
    weight: float
    arrays: Tree


def united(
    scheme: AnyScheme, parts: Sequence[Part], federation: Federation, number: int
) -> Round[Any]:
    """Several nodes' uploads as one round's, rows in order of the clients."""
    clients = [client for part in parts for client in part.clients]
    total = sum(part.weight for part in parts)
    order = sorted(range(len(clients)), key=lambda place: clients[place])
    mean: Tree = {}
    for name, value in parts[0].arrays.items():
        if is_each(scheme, name):
            mean[name] = torch.cat([part.arrays[name] for part in parts])[order]
        else:
            shares = (part.weight / total * part.arrays[name].double() for part in parts)
            mean[name] = functools.reduce(Tensor.add_, shares).to(value.dtype)
    upload = unflatten(scheme.records.upload, mean)
    return Round(upload, tuple(sorted(clients)), federation, number)


def play(
    scheme: AnyScheme,
    server: Any,
    federation: Federation,
    works: Mapping[str, Work],
    personal: Mapping[str, Any],
    number: int = 1,
) -> tuple[Any, dict[str, Any]]:
    """A whole round without messages and files: one client after the other.

    Parameters
    ----------
    scheme : Scheme
        What to play.
    server : record
        What the server holds.
    federation : Federation
        Who is there.
    works : mapping of str to Work
        Those who take part, and what each has to do.
    personal : mapping of str to record
        What the clients keep.
    number : int
        The round's number.

    Returns
    -------
    tuple
        What the server then holds, and what the clients then keep.
    """
    kept, uploads = dict(personal), []
    for client, work in works.items():
        received = row_of(scheme, scheme.downlink(server, [client]), 0)
        mine = replace(work, round=number)
        upload, kept[client] = scheme.local_update(mine, received, personal[client])
        uploads.append(flatten(upload))
    due = {one: federation.members[one].weight for one in works}
    weights = torch.tensor([scheme.weigh(server, due)[one] for one in works], dtype=torch.float64)
    total = Total(scheme)
    total.add(unflatten(scheme.records.upload, stack_trees(uploads)), weights)
    weight = float(weights.sum())
    part = Part(list(works), weight, total.mean(weight))
    return scheme.aggregate(server, united(scheme, [part], federation, number)), kept
