"""The one abstraction: a scheme is its keys, with methods.

Both halves stand side by side: what a client computes and keeps, what leaves the device, and
what the server does with it. No scheme knows about Flower, messages, files or processes, and
every method of a client works on one client, so that a node can run it for many at once with
``torch.func.vmap``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast, get_args, get_origin

from bouquet.core.federation import Federation, Member, Round, Upload
from bouquet.core.task import Task
from bouquet.core.trees import Nothing, Tree
from bouquet.core.work import Work

# All that a scheme's file needs to say what it is.
__all__ = [
    "AnyScheme",
    "Averaging",
    "Federation",
    "Member",
    "Model",
    "Payload",
    "Personal",
    "Record",
    "Records",
    "Round",
    "Scheme",
    "Server",
    "Upload",
    "Work",
]

Record = tuple[Any, ...]
Personal = TypeVar("Personal", bound=Record)
Payload = TypeVar("Payload", bound=Record)
Server = TypeVar("Server", bound=Record)
_SIDES: Any = (Personal, Payload, Upload, Server)


class Model(NamedTuple):
    """The record of weights w: what most schemes send both ways."""

    w: Tree


class Records(NamedTuple):
    """The types a scheme keeps, receives, sends, and holds at the server."""

    personal: Any
    payload: Any
    upload: Any
    server: Any


@dataclass(frozen=True)
class Scheme(Generic[Personal, Payload, Upload, Server]):
    """A published method, whole: a subclass's fields are its keys.

    The types in brackets are records (``NamedTuple``): what a client keeps, what it receives,
    what it sends, and what the server holds.

    Attributes
    ----------
    name, title, paper : str
        Its id, its name in words, and where it comes from.
    shares, keeps : str
        What goes to the server; what stays on the device.
    exception : str
        Why a client's own values may leave the device, for the schemes whose do.
    derivable : str
        What of ``keeps`` a server can compute from the uploads of one client and what it sent to
        it, and when. It never left the device, but it is no secret. A sum over the clients of a
        node hides it.
    version : int
        Of its personal state; a stored state of another version is refused.
    kind : str
        What its personal state is called, where schemes share one; else by its name.
    weights : str
        ``uniform`` or ``examples``: its paper's weights in the mean.
    clips : str
        What ``grad-clip`` bounds where a step moves more than one set of weights: ``all`` for
        their common norm, ``parts`` for the norm of each.
    payload_rows, upload_rows : tuple of str
        Fields of the payload that differ from client to client, and fields of the upload
        that reach the server one by one instead of as a mean. Both then have the client as
        their first axis.
    alone : bool
        Whether clients train one by one, because their states have unequal shapes or how long
        they work depends on what they find.
    pooled : bool
        Whether there is one learner that has everybody's data. Simulations only.
    batches_a_step : int
        How many batches a local step takes.
    everyone : bool
        Whether all clients take part in every round, whatever ``clients-per-round`` says.
    descends : bool
        Whether its clients take gradient steps, which weight decay is part of.
    decay : str
        A key of its own that does what weight decay does, where they take none.
    later : str
        The scheme that stands for it in a pipeline's later stages; empty for itself.
    plain : str
        Why its clients take plain gradient steps and no other optimizer's, in words that follow
        its name; empty where any optimizer will do.
    first_shows : bool
        Whether a client's first upload is what it then keeps, because that starts at 0.
    sent : tuple of str
        Fields of what a client keeps that it has sent as well.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    shares: ClassVar[str] = ""
    keeps: ClassVar[str] = "nothing"
    exception: ClassVar[str] = ""
    derivable: ClassVar[str] = ""
    version: ClassVar[int] = 1
    kind: ClassVar[str] = ""
    weights: ClassVar[str] = "uniform"
    clips: ClassVar[str] = "parts"
    payload_rows: ClassVar[tuple[str, ...]] = ()
    upload_rows: ClassVar[tuple[str, ...]] = ()
    alone: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    batches_a_step: ClassVar[int] = 1
    everyone: ClassVar[bool] = False
    descends: ClassVar[bool] = True
    decay: ClassVar[str] = ""
    later: ClassVar[str] = ""
    plain: ClassVar[str] = ""
    first_shows: ClassVar[bool] = False
    sent: ClassVar[tuple[str, ...]] = ()
    _records: ClassVar[Records] = Records(*_SIDES)

    def __init_subclass__(cls) -> None:
        """Find the records in the brackets behind the base class."""
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Scheme):
                given = dict(zip(origin.__parameters__, get_args(base), strict=True))  # type: ignore[attr-defined]
                cls._records = Records(*(given.get(side, side) for side in origin._records))

    @property
    def records(self) -> Records:
        """The types of what it keeps, receives, sends, and holds at the server."""
        return self._records

    # What every scheme must say.

    def local_update(
        self, work: Work, payload: Payload, personal: Personal
    ) -> tuple[Upload, Personal]:
        """A client's round: what it sends, and what it keeps."""
        raise NotImplementedError

    def predictor(self, work: Work, payload: Payload, personal: Personal) -> Tree:
        """The client's own model."""
        raise NotImplementedError

    def init_server(self, task: Task) -> Server:
        """What the server starts with."""
        raise NotImplementedError

    def downlink(self, server: Server, clients: Sequence[str]) -> Payload:
        """What goes to some clients."""
        raise NotImplementedError

    def upload_like(self, server: Server) -> Upload:
        """An upload with the names and shapes that every upload must have."""
        raise NotImplementedError

    def aggregate(self, server: Server, uploads: Round[Upload]) -> Server:
        """What the server makes of a round's uploads."""
        raise NotImplementedError

    # What most schemes leave as it is.

    def init_personal(self, task: Task, examples: int) -> Personal:
        """What a client that never took part keeps: nothing."""
        return cast(Personal, Nothing())

    def shared(self, task: Task, payload: Payload) -> Tree:
        """The shared model as every client would use it unchanged: the one the server sent."""
        return cast(Model, payload).w

    def begins_at(self, work: Work, payload: Payload, personal: Personal) -> Tree:
        """The model whose loss is f_i at the received weights, for weights that follow losses."""
        return cast(Model, payload).w

    def newcomer(self, work: Work, payload: Payload, shared: Tree) -> Tree:
        """The model of a client that joins after training and adapts the shared one to its data."""
        return work.descend(work.task.loss, shared, work.batches)

    def unmoved(self, server: Server) -> Upload:
        """What a client that changed nothing would send: the point that updates are counted from.

        Where a server averages weights, that is what it holds.
        """
        return self.upload_like(server)

    def welcome(self, server: Server, federation: Federation) -> Server:
        """What changes at the server when a run starts and when clients join.

        Once more with the same clients it must change nothing.
        """
        return server

    def advise(self, federation: Federation) -> str:
        """Refuse what cannot work, or return a warning."""
        return ""

    def weigh(self, server: Server, weights: Mapping[str, float]) -> Mapping[str, float]:
        """The clients' weights in the next mean."""
        return weights

    def draws(self, steps: int) -> int:
        """Batches a client draws for its local steps."""
        return steps * self.batches_a_step

    def adapts(self) -> int:
        """Batches of training data the predictor needs."""
        return 0

    def looks(self) -> float:
        """The share of its training data that a client looks through beside its steps.

        It is drawn anew in every round and given as ``work.data``, also for the predictor.
        """
        return 0.0

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """Numbers about a client's personal state that a simulation may tell."""
        return {}

    def personal_part(self, split: str) -> str:
        """Which parameters are personal, given what ``personal.split`` says."""
        return "none"

    def assembled(self) -> "Scheme[Any, Any, Any, Any]":
        """The scheme with what its own keys wrap around it."""
        return self

    @property
    def stateless(self) -> bool:
        """Whether a client's personal part starts anew at every participation."""
        return False

    @property
    def state_kind(self) -> str:
        """What its personal state is called."""
        return self.kind or self.name

    @property
    def stateful(self) -> bool:
        """Whether a client keeps anything from round to round."""
        return self.records.personal is not Nothing

    @property
    def averages(self) -> bool:
        """Whether the server's weights w come from a mean of the clients'."""
        sides = (self.records.server, self.records.upload)
        return all("w" in side._fields for side in sides) and "w" not in self.upload_rows


AnyScheme = Scheme[Any, Any, Any, Any]


class Averaging(Scheme[Personal, Model, Model, Model]):
    """A scheme whose server holds weights w, sends them, and takes the mean of what comes back."""

    def init_server(self, task: Task) -> Model:
        """The initial weights."""
        return Model(task.initial)

    def downlink(self, server: Model, clients: Sequence[str]) -> Model:
        """The weights as they are."""
        return server

    def upload_like(self, server: Model) -> Model:
        """Uploads look like the weights."""
        return server

    def aggregate(self, server: Model, uploads: Round[Model]) -> Model:
        """The mean of the uploads."""
        return uploads.mean
