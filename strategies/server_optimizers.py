"""Server optimizers: what a server does with the clients' mean, for any scheme that averages.

Reddi et al. (2021), *Adaptive federated optimization*; Hsu et al. (2019) for momentum. The mean
minus the server's weights is taken for a step an optimizer would see. The arithmetic is
Flower's own (FedAvgM, FedAdam, FedYogi). Running statistics are no weights, and take the mean.
"""

from dataclasses import dataclass
from typing import Any

from bouquet.core.scheme import Records, Round
from bouquet.core.task import Task
from bouquet.core.trees import Tree, extended, toward, without_statistics
from bouquet.core.wrapper import Wrapper
from bouquet.flower.wire import named, unpack

KINDS = ("mean", "adam", "momentum", "yogi")


@dataclass(frozen=True)
class ServerOptimizer:
    """Which optimizer, and how it steps.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    lr : float
        Its step; ``mean`` with 1 is the mean itself.
    beta1, beta2 : float
        How much of the past the first (momentum, adam, yogi) and second moment keep.
    tau : float
        Adam and yogi: what keeps their division from 0.
    """

    kind: str
    lr: float
    beta1: float
    beta2: float
    tau: float

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean itself."""
        return self.kind == "mean" and self.lr == 1.0


@dataclass(frozen=True)
class Optimized(Wrapper):
    """A scheme whose server moves to the mean by an optimizer; its moments join the state."""

    optimizer: ServerOptimizer

    @property
    def records(self) -> Records:
        """The scheme's own, with two moments at the server."""
        inner = self.inner.records
        return inner._replace(server=extended(inner.server, moment1=Tree, moment2=Tree))

    def init_server(self, task: Task) -> Any:
        """No moments yet."""
        return self.records.server(*self.inner.init_server(task), {}, {})

    def server_of(self, server: Any) -> Any:
        """All but the moments."""
        return self.inner.records.server(*server[:-2])

    def server_with(self, inner: Any, server: Any) -> Any:
        """The same moments beside another state of the scheme's own."""
        return self.records.server(*inner, *server[-2:])

    def aggregate(self, server: Any, uploads: Round[Any]) -> Any:
        """The scheme's own, of whose way to the mean the optimizer makes a step."""
        new = self.inner.aggregate(self.server_of(server), uploads)
        w, *moments = step(self.optimizer, uploads.number, server.w, new.w, *server[-2:])
        return self.records.server(*new._replace(w=w), *moments)


def step(
    optimizer: ServerOptimizer, round_: int, w: Tree, mean: Tree, moment1: Tree, moment2: Tree
) -> tuple[Tree, Tree, Tree]:
    """The new weights and moments."""
    if optimizer.kind == "mean":
        return toward(w, mean, optimizer.lr), {}, {}
    # Imported here: nodes use schemes too, and have no need of Flower's strategies.
    from bouquet.flower.optimizers import flower_step

    weights = without_statistics(w)
    # FedAvgM goes by the order of the names.
    trees = (weights, {name: mean[name] for name in weights}, moment1, moment2)
    new, *moments = flower_step(optimizer, round_, *map(named, trees))
    stepped = mean | _like(w, unpack(new))
    return stepped, *(_like(w, unpack(moment)) for moment in moments)  # type: ignore[return-value]


def _like(w: Tree, tree: Tree) -> Tree:
    """In the weights' own type: NumPy turns float32 times a float64 number into float64."""
    return {name: value.to(w[name].dtype) for name, value in tree.items()}
