"""The one abstraction: a scheme is a record of pure functions.

Both halves stand side by side: what a client computes and keeps, what leaves the
device, and what the server does with it. No scheme knows about Flower, messages,
files or processes, and every function works on one client, so that a node can
run it for many at once with ``torch.func.vmap``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from strategies.core.descent import Sgd, descend
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
    round : int
        The round's number, from 1.
    luck : float
        A number from 0 to 1, drawn anew for every client and round, for schemes whose
        clients do a random part of the work. Clients that train together have the same.
    """

    config: C
    task: Task
    sgd: Sgd
    batches: Sequence[Batch]
    steps: int = 0
    round: int = 1
    luck: float = 0.0

    @property
    def local_batches(self) -> Sequence[Batch]:
        """The batches of the local steps, where a scheme draws more."""
        return self.batches[: self.steps] if self.steps else self.batches


class Model(NamedTuple):
    """The record of weights w: what most schemes send both ways."""

    w: Tree


@dataclass(frozen=True)
class Member:
    """A client as the server's half of a scheme knows it.

    Parameters
    ----------
    examples : int
        How many it trains on.
    weight : float
        Its weight in a mean, by the key ``weights``.
    labels : tuple of int
        Examples of each label, where the user lets clients tell; else empty.
    """

    examples: int
    weight: float = 1.0
    labels: tuple[int, ...] = ()


@dataclass(frozen=True)
class Federation:
    """Who takes part, and the facts of the run the server's half may need.

    Parameters
    ----------
    members : mapping of str to Member
        The clients there are now.
    model : str
        The model's name.
    lr : float
        Local step size.
    steps, epochs : int
        Local steps, or passes over the data; the other is 0.
    sampled : int
        Clients in a round; 0 for all.
    seed : int
        Of the run.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    model: str = ""
    lr: float = 0.0
    steps: int = 0
    epochs: int = 0
    sampled: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Round:
    """What the server knows of a round's valid uploads.

    Parameters
    ----------
    mean : record
        Their weighted mean; the fields a scheme names in ``each`` have a row for every
        one of ``clients`` instead.
    clients : tuple of str
        Whose they are, in order of the ids.
    federation : Federation
        Everyone, present in this round or not.
    number : int
        The round's number, from 1.
    """

    mean: Any
    clients: tuple[str, ...]
    federation: Federation
    number: int = 1


def start_at_initial(config: Any, task: Task) -> Model:
    """A server that holds the initial weights."""
    return Model(task.initial)


def send_model(config: Any, server: Model, clients: Sequence[str]) -> Model:
    """Send everyone the weights as they are."""
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


def at_received(work: Work[Any], payload: Any, personal: Any) -> Tree:
    """A client's loss is that of the weights the server sent."""
    w: Tree = payload.w
    return w


def keep_nothing(config: Any, task: Task, examples: int) -> Nothing:
    """No personal state."""
    return Nothing()


def one_a_step(config: Any, steps: int) -> int:
    """A batch for each local step."""
    return steps


def no_adaptation(config: Any) -> int:
    """The predictor needs no data."""
    return 0


def weigh_as_told(config: Any, server: Any, weights: Mapping[str, float]) -> Mapping[str, float]:
    """The weights that the key ``weights`` gives."""
    return weights


def welcome_all(config: Any, server: Any, federation: Federation) -> Any:
    """Newcomers change nothing at the server."""
    return server


def no_advice(config: Any, federation: Federation) -> str:
    """Nothing to check or to warn of."""
    return ""


def tune(work: Work[Any], payload: Any, shared: Tree) -> Tree:
    """A newcomer's model: the shared one after gradient steps on the newcomer's data."""
    return descend(work.task.loss, shared, work.batches, work.sgd)


def no_diagnostics(personal: Any, shared: Tree) -> Tree:
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
    kind : str
        What its personal state is called, where schemes share one; else by its name.
    weights : str
        ``uniform`` or ``examples``: its paper's weights in the mean.
    personal, payload, upload, server : type
        The records it keeps, receives, sends, and holds at the server.
    own, each : tuple of str
        Fields of the payload that differ from client to client, and fields of the
        upload that reach the server one by one instead of as a mean. Both then have
        the client as their first axis.
    alone : bool
        Whether clients train one by one, because their states have unequal shapes.
    splits : bool
        Whether the key ``personal.split`` divides its model.
    pooled : bool
        Whether there is one learner that has everybody's data. Simulations only.
    exception : str
        Why a client's own values may leave the device, for the schemes whose do.
    init_personal : callable
        ``(config, task, examples) -> personal`` of a client that never took part.
    init_server, downlink, aggregate : callable
        ``(config, task) -> server``, ``(config, server, clients) -> payload`` and
        ``(config, server, round) -> server``.
    welcome : callable
        ``(config, server, federation) -> server``, when a run starts and when clients
        join; once more with the same clients it must change nothing.
    advise : callable
        ``(config, federation) -> str``: refuses what cannot work, or returns a warning.
    weigh : callable
        ``(config, server, weights) -> weights``: the clients' weights in the next mean.
    upload_like : callable
        ``(config, server) -> upload``: the names and shapes an upload must have.
    newcomer : callable
        ``(work, payload, shared) -> Tree``: the model of a client that joins after
        training and adapts to its data while the server is frozen.
    draws : callable
        ``(config, steps) -> int``: batches a client draws for its local steps.
    adapts : callable
        ``(config) -> int``: batches of training data the predictor needs.
    begins_at : callable
        ``(work, payload, personal) -> Tree``: the model the scheme takes a client's loss f_i
        of at the received weights; ``weights = agnostic`` weighs clients by that loss.
    clips : str
        What ``grad-clip`` bounds where a step moves more than one set of weights: ``all`` for
        their common norm, ``parts`` for the norm of each.
    shared : callable
        ``(config, task, payload) -> Tree``: the shared model as every client
        would use it unchanged.
    diagnostics : callable
        ``(personal, shared) -> {name: number}``: what may be told of a client's personal
        state in a simulation.
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
    kind: str = ""
    weights: str = "uniform"
    personal: type = Nothing
    payload: type = Model
    upload: type = Model
    server: type = Model
    own: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    alone: bool = False
    splits: bool = False
    clips: str = "parts"
    pooled: bool = False
    exception: str = ""
    init_personal: Callable[[Any, Task, int], Any] = keep_nothing
    init_server: Callable[[Any, Task], Any] = start_at_initial
    downlink: Callable[[Any, Any, Sequence[str]], Any] = send_model
    aggregate: Callable[[Any, Any, Round], Any] = take_mean
    welcome: Callable[[Any, Any, Federation], Any] = welcome_all
    advise: Callable[[Any, Federation], str] = no_advice
    weigh: Callable[[Any, Any, Mapping[str, float]], Mapping[str, float]] = weigh_as_told
    newcomer: Callable[[Work[Any], Any, Tree], Tree] = tune
    begins_at: Callable[[Work[Any], Any, Any], Tree] = at_received
    upload_like: Callable[[Any, Any], Any] = like_model
    shared: Callable[[Any, Task, Any], Tree] = received_model
    draws: Callable[[Any, int], int] = one_a_step
    adapts: Callable[[Any], int] = no_adaptation
    diagnostics: Callable[[Any, Tree], Tree] = no_diagnostics

    @property
    def state_kind(self) -> str:
        """What its personal state is called."""
        return self.kind or self.name

    @property
    def stateful(self) -> bool:
        """Whether a client keeps anything from round to round."""
        return self.personal is not Nothing

    @property
    def averages(self) -> bool:
        """Whether the server's weights w come from a mean of the clients'."""
        sides = (self.server, self.upload)
        return all("w" in side._fields for side in sides) and "w" not in self.each  # type: ignore[attr-defined]
