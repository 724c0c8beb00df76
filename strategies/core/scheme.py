"""The one abstraction: a scheme is a record of pure functions.

Both halves stand side by side: what a client computes and keeps, what leaves the
device, and what the server does with it. No scheme knows about Flower, messages,
files or processes, and every function works on one client, so that a node can
run it for many at once with ``torch.func.vmap``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from strategies.core.descent import Sgd
from strategies.core.task import Batch, Task
from strategies.core.trees import Nothing, Tree, mix

C = TypeVar("C", covariant=True)


@dataclass(frozen=True)
class NoKeys:
    """The config of a scheme that has no keys of its own."""


@dataclass(frozen=True)
class Work(Generic[C]):
    """What a client is given to work with in a round.

    Parameters
    ----------
    config : C
        The scheme's own config.
    task : Task
        Model and loss.
    sgd : Sgd
        Step size and its kin.
    batches : sequence of Batch
        The round's minibatches: as many as the scheme draws, else one a local step.
    steps : int
        Local steps; 0 where passes over the data are counted instead.
    """

    config: C
    task: Task
    sgd: Sgd
    batches: Sequence[Batch]
    steps: int = 0

    @property
    def local_batches(self) -> Sequence[Batch]:
        """The batches of the local steps, where a scheme draws more."""
        return self.batches[: self.steps] if self.steps else self.batches


class Model(NamedTuple):
    """The record of weights w: what most schemes send both ways."""

    w: Tree


class Round(NamedTuple):
    """What the server knows of a round's valid uploads.

    Parameters
    ----------
    mean : record
        Their weighted mean.
    clients : int
        How many there were.
    population : int
        How many clients there are.
    """

    mean: Any
    clients: int
    population: int


def start_at_initial(config: Any, task: Task) -> Model:
    """A server that holds the initial weights."""
    return Model(task.initial)


def send_model(config: Any, server: Model) -> Model:
    """Send the weights as they are."""
    return Model(server.w)


def take_mean(config: Any, server: Model, uploads: Round) -> Model:
    """Replace the weights with the mean of the uploads."""
    return Model(uploads.mean.w)


def step_to_mean(config: Any, server: Model, uploads: Round) -> Model:
    """w ← (1 − β) w + β mean, exactly the mean at β = 1."""
    return Model(mix(uploads.mean.w, server.w, config.beta))


def like_model(config: Any, server: Model) -> Model:
    """Uploads look like the server's weights."""
    return Model(server.w)


def received_model(config: Any, task: Task, payload: Model) -> Tree:
    """The shared model is the one the server sent."""
    return payload.w


def keep_nothing(config: Any, task: Task) -> Nothing:
    """No personal state."""
    return Nothing()


def one_a_step(config: Any, steps: int) -> int:
    """A batch for each local step."""
    return steps


def no_adaptation(config: Any) -> int:
    """The predictor needs no data."""
    return 0


def no_diagnostics(personal: Any, shared: Tree) -> dict[str, float]:
    """Nothing to tell about the personal state."""
    return {}


@dataclass(frozen=True)
class Scheme:
    """A published method, whole.

    Parameters
    ----------
    name, title, paper : str
        Its id, its name in words, and where it comes from.
    shares, keeps : str
        What goes to the server; what stays on the device.
    local_update : callable
        ``(work, payload, personal) -> (upload, personal)``: a client's round.
    predictor : callable
        ``(work, payload, personal) -> Tree``: the client's own model.
    config : type
        Frozen dataclass of its keys, read under its name.
    version : int
        Of its personal state; a stored state of another version is refused.
    weights : str
        ``uniform`` or ``examples``: its paper's weights in the mean.
    personal, payload, upload, server : type
        The records it keeps, receives, sends, and holds at the server.
    init_personal : callable
        ``(config, task) -> personal`` of a client that never took part.
    init_server, downlink, aggregate : callable
        ``(config, task) -> server``, ``(config, server) -> payload`` and
        ``(config, server, round) -> server``.
    upload_like : callable
        ``(config, server) -> upload``: the names and shapes an upload must have.
    draws : callable
        ``(config, steps) -> int``: batches a client draws for its local steps.
    adapts : callable
        ``(config) -> int``: batches of training data the predictor needs.
    shared : callable
        ``(config, task, payload) -> Tree``: the shared model as every client
        would use it unchanged.
    diagnostics : callable
        ``(personal, shared) -> {name: number}``, for a client's own log.
    """

    name: str
    title: str
    paper: str
    shares: str
    keeps: str
    local_update: Callable[[Work[Any], Any, Any], tuple[Any, Any]]
    predictor: Callable[[Work[Any], Any, Any], Tree]
    config: type = NoKeys
    version: int = 1
    weights: str = "uniform"
    personal: type = Nothing
    payload: type = Model
    upload: type = Model
    server: type = Model
    init_personal: Callable[[Any, Task], Any] = keep_nothing
    init_server: Callable[[Any, Task], Any] = start_at_initial
    downlink: Callable[[Any, Any], Any] = send_model
    aggregate: Callable[[Any, Any, Round], Any] = take_mean
    upload_like: Callable[[Any, Any], Any] = like_model
    shared: Callable[[Any, Task, Any], Tree] = received_model
    draws: Callable[[Any, int], int] = one_a_step
    adapts: Callable[[Any], int] = no_adaptation
    diagnostics: Callable[[Any, Tree], dict[str, float]] = no_diagnostics

    @property
    def stateful(self) -> bool:
        """Whether a client keeps anything from round to round."""
        return self.personal is not Nothing
