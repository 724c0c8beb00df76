"""Server optimizers: what a server does with the clients' mean, for any scheme that averages.

Reddi et al. (2021), *Adaptive federated optimization*; Hsu et al. (2019) for momentum. The mean
minus the server's weights is taken for a step an optimizer would see. The arithmetic is
Flower's own (FedAvgM, FedAdam, FedYogi).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strategies.core.scheme import Round, Scheme
from strategies.core.task import Task
from strategies.core.trees import Tree, extended, mix
from strategies.core.wire import pack, unpack

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


def with_optimizer(scheme: Scheme, optimizer: ServerOptimizer) -> Scheme:
    """A scheme whose server moves to the mean by an optimizer; its moments join the state."""
    if optimizer.kind == "mean" and optimizer.lr == 1.0:
        return scheme
    server_type = extended(scheme.server, moment1=Tree, moment2=Tree)

    def inner(server: Any) -> Any:
        return scheme.server(*server[:-2])

    def init_server(config: Any, task: Task) -> Any:
        return server_type(*scheme.init_server(config, task), {}, {})

    def downlink(config: Any, server: Any, clients: Sequence[str]) -> Any:
        return scheme.downlink(config, inner(server), clients)

    def aggregate(config: Any, server: Any, uploads: Round) -> Any:
        new = scheme.aggregate(config, inner(server), uploads)
        w, *moments = step(optimizer, uploads.number, server.w, new.w, *server[-2:])
        return server_type(*new._replace(w=w), *moments)

    return replace(
        scheme,
        server=server_type,
        init_server=init_server,
        welcome=lambda config, server, federation: server_type(
            *scheme.welcome(config, inner(server), federation), *server[-2:]
        ),
        downlink=downlink,
        upload_like=lambda config, server: scheme.upload_like(config, inner(server)),
        weigh=lambda config, server, weights: scheme.weigh(config, inner(server), weights),
        aggregate=aggregate,
    )


def step(
    optimizer: ServerOptimizer, round_: int, w: Tree, mean: Tree, moment1: Tree, moment2: Tree
) -> tuple[Tree, Tree, Tree]:
    """The new weights and moments."""
    if optimizer.kind == "mean":
        return mix(mean, w, optimizer.lr), {}, {}
    # Imported here: nodes use schemes too, and have no need of Flower's strategies.
    from strategies.core.flower_optimizers import flower_step

    new, *moments = flower_step(optimizer, round_, *map(pack, (w, mean, moment1, moment2)))
    return _like(w, unpack(new)), *(_like(w, unpack(moment)) for moment in moments)  # type: ignore[return-value]


def _like(w: Tree, tree: Tree) -> Tree:
    """In the weights' own type: NumPy turns float32 times a float64 number into float64."""
    return {name: value.to(w[name].dtype) for name, value in tree.items()}
