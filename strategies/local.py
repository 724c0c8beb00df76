"""Local: every client trains alone, from the common initial weights.

The reference a personalized model must beat to be worth communicating for. The
server's model stays at the initial weights, which every device makes for itself
from the seed, so not one weight crosses the wire.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bouquet.core.scheme import Model, Round, Scheme, Work
from bouquet.core.task import Task
from bouquet.core.trees import Nothing, Tree, distance, norm


@dataclass(frozen=True)
class Local(Scheme[Model, Nothing, Nothing, Model]):
    """Local training."""

    name = "local"
    title = "Local training"
    paper = "baseline: no communication"
    shares = "nothing"
    keeps = "w_i, the client's weights"

    def init_personal(self, task: Task, examples: int) -> Model:
        """Start where everyone starts."""
        return Model(task.initial)

    def local_update(self, work: Work, payload: Nothing, personal: Model) -> tuple[Nothing, Model]:
        """SGD on the client's loss from where it stopped last time."""
        return Nothing(), Model(work.descend(work.task.loss, personal.w, work.batches))

    def predictor(self, work: Work, payload: Nothing, personal: Model) -> Tree:
        """The client's own weights."""
        return personal.w

    def shared(self, task: Task, payload: Nothing) -> Tree:
        """What a client without data would use: the initial weights."""
        return task.initial

    def init_server(self, task: Task) -> Model:
        """The initial weights, which stay."""
        return Model(task.initial)

    def downlink(self, server: Model, clients: Sequence[str]) -> Nothing:
        """Nothing is sent, either way."""
        return Nothing()

    def upload_like(self, server: Model) -> Nothing:
        """Nothing."""
        return Nothing()

    def aggregate(self, server: Model, uploads: Round[Nothing]) -> Model:
        """Nothing came in: the server stays as it is."""
        return server

    def diagnostics(self, personal: Model, shared: Tree) -> Tree:
        """How far the client has gone on its own."""
        return {"personal_norm": norm(personal.w), "drift": distance(personal.w, shared)}
