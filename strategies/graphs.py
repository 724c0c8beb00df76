"""Graphs over clients: symmetric weights a_kl ≥ 0 without loops."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.config import key
from bouquet.core.errors import BadInput
from bouquet.core.scheme import Federation, Payload, Personal, Scheme, Server, Upload
from bouquet.core.seeding import generator

Matrix = NDArray[np.float64]
KINDS = ("equal", "random", "weighted", "similar", "star", "ring", "file")


@dataclass(frozen=True)
class OnGraph(Scheme[Personal, Payload, Upload, Server]):
    """A scheme that pulls the models of neighbours in a graph together."""

    exception = "multi-task learning: a client's own model travels, to be compared with the others'"
    plain = "which mixes neighbours in by as much as gradient steps reach, lr times their number"

    eta: float = key(
        0.01, "pull towards the neighbours", low=0.0, degenerate="0 is Local", step=True
    )
    graph: str = key("equal", "who is whose neighbour", choices=KINDS)
    graph_file: str = key("", "graph 'file': a matrix of weights, CSV or JSON")
    neighbours: str = key(
        "all",
        "all: with the last known models of those not sampled; sampled: without them",
        choices=("all", "sampled"),
    )

    def drawn(self, federation: Federation) -> Tensor:
        """The graph of those who are there."""
        return graph(self.graph, self.graph_file, federation, self.name)

    def advise(self, federation: Federation) -> str:
        """Warn where μ̃ η λ_max(L) exceeds 2: mixing no longer brings models together."""
        # Where passes are counted, clients reach differently far; each takes at least one step.
        reach = federation.lr * max(1, federation.steps)
        factor = reach * self.eta * roughest(self.drawn(federation))
        if factor <= 2:
            return ""
        return (
            f"{self.name}.eta {self.eta:g} is too large for this graph: lr * local-steps * eta * "
            f"lambda_max is {factor:.3g}, and above 2 mixing drives the models apart."
        )


def graph(kind: str, file: str, federation: Federation, scheme: str) -> Tensor:
    """The weights between clients, in order of their ids.

    Parameters
    ----------
    kind : str
        ``equal``: 1 for every pair. ``random``: normal draws scaled to [0, 1]. ``weighted``: 0
        between two small clients, 0.5 between a small and a large one, else 1; small is less
        than half the mean size. ``similar``: 0, 0.5 or 1 for no, one or more labels in common.
        ``star``: everyone with the first client. ``ring``: everyone with the next. ``file``.
    file : str
        For ``file``: a matrix as CSV or JSON, or JSON objects ``{client: {client: weight}}``.
    federation : Federation
        The clients.
    scheme : str
        Whose keys an error names.
    """
    ids = sorted(federation.members)
    members = [federation.members[client] for client in ids]
    count = len(ids)
    if kind == "file":
        return torch.from_numpy(_from_file(file, ids, scheme))
    weights = np.zeros((count, count))
    if kind == "equal":
        weights[:] = 1.0
    elif kind == "random":
        draws = generator(federation.seed, "graph").normal(size=(count, count))
        upper = draws[np.triu_indices(count, 1)]
        low, high = (upper.min(), upper.max()) if len(upper) > 1 else (0.0, 0.0)
        weights = (draws - low) / (high - low) if high > low else np.ones((count, count))
        weights = np.triu(weights, 1) + np.triu(weights, 1).T
    elif kind == "weighted":
        sizes = np.array([member.examples for member in members])
        large = (sizes >= sizes.mean() / 2).astype(float)
        weights = (large[:, None] + large[None, :]) / 2
    elif kind == "similar":
        if not all(member.labels for member in members):
            raise BadInput(
                f"{scheme}.graph 'similar' compares the clients' labels: set share-label-counts "
                "to true, with data that have labels."
            )
        has = (np.array([member.labels for member in members]) > 0).astype(float)
        weights = np.minimum(has @ has.T, 2) / 2
    elif kind == "star":
        weights[0, :] = weights[:, 0] = 1.0
    elif kind == "ring":
        for place in range(count):
            weights[place, (place + 1) % count] = weights[(place + 1) % count, place] = 1.0
    np.fill_diagonal(weights, 0.0)
    return torch.from_numpy(weights)


def roughest(weights: Tensor) -> float:
    """λ_max of the Laplacian L = D − A."""
    laplacian = torch.diag(weights.sum(dim=1)) - weights
    return float(torch.linalg.eigvalsh(laplacian)[-1])


def _from_file(file: str, ids: list[str], scheme: str) -> Matrix:
    """A graph a user wrote, or one sentence that says what is wrong with it."""
    name = f"{scheme}.graph-file {file!r}"
    if not file:
        raise BadInput(f"{scheme}.graph is 'file': {scheme}.graph-file must name it, not ''.")
    try:
        text = Path(file).read_text("utf-8")
        found = json.loads(text) if file.endswith(".json") else list(csv.reader(text.splitlines()))
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadInput(f"{name} is not JSON: {error}.") from error
    if isinstance(found, dict):
        found = _by_name(found, ids, name)
    try:
        weights = np.array(found, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{name} must be a matrix of numbers.") from error
    if weights.shape != (len(ids), len(ids)):
        shape = " x ".join(map(str, weights.shape))
        raise BadInput(f"{name} must be {len(ids)} x {len(ids)}, one row a client, not {shape}.")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise BadInput(f"{name} must have weights of at least 0, all finite.")
    if np.diag(weights).any():
        raise BadInput(f"{name} must have a diagonal of 0: no client is its own neighbour.")
    unequal = np.argwhere(weights != weights.T)
    if len(unequal):
        one, other = unequal[0]
        raise BadInput(
            f"{name} must be symmetric, but clients {ids[one]} and {ids[other]} have "
            f"{weights[one, other]:g} one way and {weights[other, one]:g} the other."
        )
    return weights


def _by_name(found: dict[str, object], ids: list[str], name: str) -> list[list[object]]:
    rows: list[list[object]] = [[0.0] * len(ids) for _ in ids]
    for client, neighbours in found.items():
        if not isinstance(neighbours, dict):
            raise BadInput(f"{name} must give each client an object of neighbours and weights.")
        for one in (client, *neighbours):
            if one not in ids:
                raise BadInput(f"{name} names client {one!r}, who is not there.")
        for neighbour, weight in neighbours.items():
            rows[ids.index(client)][ids.index(neighbour)] = weight
    return rows
