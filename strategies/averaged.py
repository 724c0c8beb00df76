"""Outputs that average the points of the whole way instead of taking the last one.

The server's part of such an average needs the mean over clients at *every* local step, and
clients meet only once a round. The mean over clients of each one's average over a round is
the average over the round of the clients' mean, so a client sends that beside its weights,
and nothing is lost. A client that sits rounds out averages over the steps it took.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Federation, Record, Records, Round, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, extended, mix
from bouquet.core.wrapper import Wrapper

P = TypeVar("P", bound=Record)
K = TypeVar("K", bound=Record)


@dataclass(frozen=True)
class Average(Generic[P, K]):
    """What a scheme averages on its way.

    Parameters
    ----------
    shared, own : callable
        From the points before and after a step to the weights that count: those the server
        averages (None for none), and those the client does.
    start : callable
        ``task -> Tree``: what the client's average is before there is one.
    weight : callable, optional
        The weight of step t, from 1; without, all steps and all rounds have the same.
    predict : callable
        ``(shared, own, personal) -> Tree``: the client's own model.
    judged : bool
        Whether the shared model that is judged is the average, too.
    """

    own: Callable[[P, P], Tree]
    start: Callable[[Task], Tree]
    predict: Callable[[Tree, Tree, K], Tree]
    shared: Callable[[P, P], Tree] | None = None
    weight: Callable[[int], float] | None = None
    judged: bool = False


@dataclass(frozen=True)
class Averaged(Wrapper):
    """A scheme that predicts with averages; they join what it keeps, sends and holds."""

    average: Average[Any, Any]

    @property
    def records(self) -> Records:
        """The scheme's own, with averages and the weights they have."""
        keeps, receives, sends, holds = self.inner.records
        return Records(
            extended(keeps, trail=Tree, weight=Tensor),
            extended(receives, trail=Tree),
            extended(sends, trail=Tree),
            extended(holds, trail=Tree, weight=Tensor),
        )

    def init_personal(self, task: Task, examples: int) -> Any:
        """Nothing averaged yet."""
        inner = self.inner.init_personal(task, examples)
        nothing = torch.zeros((), dtype=torch.float64)
        return self.records.personal(*inner, self.average.start(task), nothing)

    def init_server(self, task: Task) -> Any:
        """What the average is before there is one, is the start."""
        start = task.initial if self.average.shared else {}
        nothing = torch.zeros((), dtype=torch.float64)
        return self.records.server(*self.inner.init_server(task), start, nothing)

    def server_of(self, server: Any) -> Any:
        """The scheme's own part of the server's state."""
        return self.inner.records.server(*server[:-2])

    def server_with(self, inner: Any, server: Any) -> Any:
        """The same averages beside another state of the scheme's own."""
        return self.records.server(*inner, *server[-2:])

    def downlink(self, server: Any, clients: Sequence[str]) -> Any:
        """The scheme's own, and the average where there is one."""
        inner = self.inner.downlink(self.server_of(server), clients)
        return self.records.payload(*inner, server.trail)

    def upload_like(self, server: Any) -> Any:
        """An upload has an average, too."""
        return self.records.upload(*self.inner.upload_like(self.server_of(server)), server.trail)

    def unmoved(self, server: Any) -> Any:
        """The average over a round without a step is the model itself."""
        own = self.server_of(server)
        still = {name: own.w[name] for name in server.trail}
        return self.records.upload(*self.inner.unmoved(own), still)

    def received(self, payload: Any) -> Any:
        """What the scheme itself would have received."""
        return self.inner.records.payload(*payload[:-1])

    def kept(self, personal: Any) -> Any:
        """What the scheme itself would have kept."""
        return self.inner.records.personal(*personal[:-2])

    def local_update(self, work: Work, payload: Any, personal: Any) -> tuple[Any, Any]:
        """The scheme's own, step by step."""
        way = _Way(self.average, work, payload, personal)
        upload, kept = self.inner.local_update(
            replace(work, watch=way.step), self.received(payload), self.kept(personal)
        )
        return (
            self.records.upload(*upload, way.shared),
            self.records.personal(*kept, way.own, way.weight),
        )

    def aggregate(self, server: Any, uploads: Round[Any]) -> Any:
        """The scheme's own, and the round's average added to the one so far."""
        mean = self.inner.records.upload(*uploads.mean[:-1])
        new = self.inner.aggregate(self.server_of(server), replace(uploads, mean=mean))
        if not server.trail:
            return self.server_with(new, server)
        weight = 1.0
        if self.average.weight is not None:
            steps = uploads.federation.steps
            times = range((uploads.number - 1) * steps + 1, uploads.number * steps + 1)
            weight = sum(self.average.weight(t) for t in times)
        total = server.weight + weight
        trail = _onward(server.trail, uploads.mean.trail, weight / total)
        return self.records.server(*new, trail, total)

    def predictor(self, work: Work, payload: Any, personal: Any) -> Tree:
        """What the averages make."""
        return self.average.predict(payload.trail, personal.trail, self.kept(personal))

    def shared(self, task: Task, payload: Any) -> Tree:
        """The average, or the scheme's own."""
        return payload.trail if self.average.judged else super().shared(task, payload)

    def advise(self, federation: Federation) -> str:
        """Weights count steps."""
        if self.average.weight is not None and not federation.steps:
            raise BadInput(
                f"{self.inner.name}.output must be 'last' with local-epochs, not 'average': the "
                "average's weights count local steps."
            )
        return super().advise(federation)


class _Way:
    """The averages of one client's round, as it goes on."""

    def __init__(self, average: Average[Any, Any], work: Work, payload: Any, personal: Any) -> None:
        self._average = average
        self._time = (work.round - 1) * work.steps
        self.shared: Tree = payload.w if average.shared else {}
        self.own, self.weight = personal.trail, personal.weight
        self._taken = torch.zeros_like(personal.weight)

    def step(self, before: Any, after: Any, batch: Batch) -> None:
        """Take in a step; one that only others take is no point of this client's way."""
        self._time += 1
        size = 1.0 if self._average.weight is None else self._average.weight(self._time)
        counts = size * batch.active.double()
        self._taken, self.weight = self._taken + counts, self.weight + counts
        self.own = _onward(self.own, self._average.own(before, after), counts / self.weight)
        if self._average.shared is not None:
            point = self._average.shared(before, after)
            self.shared = _onward(self.shared, point, counts / self._taken)


def _onward(average: Tree, point: Tree, share: Tensor) -> Tree:
    """An average to which a point is added, whose share of the new average is given."""
    weight = torch.as_tensor(share, dtype=next(iter(point.values())).dtype)
    return mix({name: point[name] for name in average}, average, weight)
