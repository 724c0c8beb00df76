"""Local: every client trains alone, from the common initial weights.

The reference a personalized model must beat to be worth communicating for. The
server's model stays at the initial weights, which every device makes for itself
from the seed, so not one weight crosses the wire.
"""

from collections.abc import Sequence
from typing import Any

from strategies.core.descent import descend
from strategies.core.scheme import Model as Personal
from strategies.core.scheme import NoKeys, Round, Scheme, Work
from strategies.core.task import Task
from strategies.core.trees import Nothing, Tree, distance, norm


def init_personal(config: NoKeys, task: Task, examples: int) -> Personal:
    """Start where everyone starts."""
    return Personal(task.initial)


def local_update(
    work: Work[NoKeys], payload: Nothing, personal: Personal
) -> tuple[Nothing, Personal]:
    """SGD on the client's loss from where it stopped last time."""
    return Nothing(), Personal(descend(work.task.loss, personal.w, work.batches, work.sgd))


def predictor(work: Work[NoKeys], payload: Nothing, personal: Personal) -> Tree:
    """The client's own weights."""
    return personal.w


def shared(config: NoKeys, task: Task, payload: Nothing) -> Tree:
    """What a client without data would use: the initial weights."""
    return task.initial


def nothing(config: NoKeys, server: Any, clients: Sequence[str] = ()) -> Nothing:
    """What is sent, either way."""
    return Nothing()


def aggregate(config: NoKeys, server: Any, uploads: Round) -> Any:
    """Nothing came in: the server stays as it is."""
    return server


def diagnostics(personal: Personal, shared: Tree) -> Tree:
    """How far the client has gone on its own."""
    return {"personal_norm": norm(personal.w), "drift": distance(personal.w, shared)}


SCHEME = Scheme(
    name="local",
    title="Local training",
    paper="baseline: no communication",
    shares="nothing",
    keeps="w_i, the client's weights",
    payload=Nothing,
    upload=Nothing,
    personal=Personal,
    init_personal=init_personal,
    local_update=local_update,
    predictor=predictor,
    shared=shared,
    downlink=nothing,
    upload_like=nothing,
    aggregate=aggregate,
    diagnostics=diagnostics,
)
