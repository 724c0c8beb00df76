"""Outputs that average the points of the whole way instead of taking the last one.

The server's part of such an average needs the mean over clients at *every* local step, and
clients meet only once a round. The mean over clients of each one's average over a round is
the average over the round of the clients' mean, so a client sends that beside its weights,
and nothing is lost.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from strategies.core.scheme import Round
from strategies.core.trees import Tree, mix


class Trail(NamedTuple):
    """Weights, and the average of the points on their way; empty where no output wants it."""

    w: Tree
    trail: Tree


class TrailServer(NamedTuple):
    """A server's weights, the average over all rounds, and the weight that average has."""

    w: Tree
    trail: Tree
    weight: Tensor


def begin(w: Tree, wanted: bool) -> TrailServer:
    """Nothing averaged yet: what the average is before there is one, is the start."""
    return TrailServer(w, w if wanted else {}, torch.zeros((), dtype=torch.float64))


def send_trail(config: object, server: TrailServer, clients: Sequence[str] = ()) -> Trail:
    """Send the weights, and the average where there is one."""
    return Trail(server.w, server.trail)


def take_trail(server: TrailServer, w: Tree, uploads: Round, weight: float) -> TrailServer:
    """New weights, and a round's average added to the one so far with its weight."""
    if not server.trail:
        return server._replace(w=w)
    total = server.weight + weight
    return TrailServer(w, onward(server.trail, uploads.mean.trail, weight / total), total)


def onward(average: Tree, point: Tree, share: Tensor | float) -> Tree:
    """An average to which a point is added, whose share of the new average is given.

    A share of 1 starts over. There is nothing to do where no average is wanted.
    """
    if not average:
        return average
    weight = torch.as_tensor(share, dtype=next(iter(point.values())).dtype)
    return mix({name: point[name] for name in average}, average, weight)
