"""What a server does about clients that send too much: for any scheme that averages.

Uploads then reach the server one by one, also those of a node that hosts many clients: in a
node's sum nobody could find the one that is wrong. Long updates are clipped to a multiple of the
round's median (Sun et al. 2019, *Can you really backdoor federated learning?*, with the median
for a bound), and the mean may be a trimmed mean or a median of each weight (Yin et al. 2018,
*Byzantine-robust distributed learning*).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bouquet.core.round import is_each
from bouquet.core.scheme import Round
from bouquet.core.trees import Tree, flatten, unflatten
from bouquet.core.wrapper import Wrapper

KINDS = ("mean", "trimmed", "median")


@dataclass(frozen=True)
class Aggregation:
    """How a round's uploads become one.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    trim : float
        Trimmed: the share of clients left out at each end, weight by weight.
    longest : float
        How many times the round's median update an update may be long; 0 for any length.
    """

    kind: str
    trim: float
    longest: float

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean itself, for which a node's sum will do."""
        return not self.longest and self._plain

    @property
    def _plain(self) -> bool:
        return self.kind == "mean" or (self.kind == "trimmed" and not self.trim)

    def combined(self, rows: Tensor, shares: Tensor) -> Tensor:
        """One value of a row for each client; ``shares`` are theirs in a mean, and sum to 1.

        A trimmed mean and a median do without: how much data a client has is its own word.
        """
        count = len(rows)
        if self._plain:
            return (shares.reshape(-1, *[1] * (rows.ndim - 1)) * rows).sum(dim=0)
        most = (count - 1) // 2  # what leaves the middle one, or the middle two
        cut = most if self.kind == "median" else min(most, math.ceil(self.trim * count))
        return rows.sort(dim=0).values[cut : count - cut].mean(dim=0)


@dataclass(frozen=True)
class Robust(Wrapper):
    """A scheme whose server looks at the uploads one by one before it averages them."""

    aggregation: Aggregation

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "upload_rows", self.inner.records.upload._fields)

    @property
    def averages(self) -> bool:
        """As the scheme does."""
        return self.inner.averages

    def aggregate(self, server: Any, uploads: Round[Any]) -> Any:
        """The scheme's own, of a mean that one client cannot have its way with."""
        return self.inner.aggregate(server, replace(uploads, mean=self._mean(server, uploads)))

    def clipped(self, server: Any, uploads: Round[Any]) -> list[str]:
        """Whose updates were too long."""
        moved = self._moved(server, uploads)
        scales = self._scales(moved, len(uploads.clients)).tolist()
        return [one for one, scale in zip(uploads.clients, scales, strict=True) if scale < 1]

    def _mean(self, server: Any, uploads: Round[Any]) -> Any:
        start, moved = flatten(self.inner.unmoved(server)), self._moved(server, uploads)
        shares, scales = self._shares(server, uploads), self._scales(moved, len(uploads.clients))
        mean = flatten(uploads.mean)
        for name, rows in moved.items():
            scale = scales.reshape(-1, *[1] * (rows.ndim - 1))
            rows = torch.where(scale > 0, rows * scale, 0.0)  # what is infinite has a scale of 0
            new = start[name].double() + self.aggregation.combined(rows, shares)
            mean[name] = new.to(start[name].dtype)
        return unflatten(self.records.upload, mean)

    def _moved(self, server: Any, uploads: Round[Any]) -> Tree:
        """What clients changed of what the scheme takes the mean of: a row for each of them."""
        start = flatten(self.inner.unmoved(server))
        return {
            name: rows.double() - start[name].double()
            for name, rows in flatten(uploads.mean).items()
            if not is_each(self.inner, name)
        }

    def _scales(self, moved: Tree, count: int) -> Tensor:
        """What each client's update is multiplied by to be no longer than it may."""
        if not self.aggregation.longest:
            return torch.ones(count, dtype=torch.float64)
        squares = torch.zeros(count, dtype=torch.float64)
        for rows in moved.values():
            squares += rows.reshape(count, -1).square().sum(dim=1)
        lengths = squares.sqrt()
        most = self.aggregation.longest * lengths.quantile(0.5)
        return torch.where(lengths > most, most / lengths, 1.0)

    def _shares(self, server: Any, uploads: Round[Any]) -> Tensor:
        members = uploads.federation.members
        due = {client: members[client].weight for client in uploads.clients}
        weights = self.weigh(server, due)
        found = torch.tensor([weights[one] for one in uploads.clients], dtype=torch.float64)
        return found / found.sum()
