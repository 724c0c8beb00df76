"""The laws every scheme must keep, for ours and for yours.

>>> from bouquet.testing import check_scheme
>>> def test_my_scheme_keeps_the_laws():
...     check_scheme(MyScheme)
"""

import copy
import csv
import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType
from torch import Tensor

from bouquet.api import keys_of_program
from bouquet.client_app.stores import DiskStore, read_state
from bouquet.core.batches import Plan, draw, gather, steps
from bouquet.core.descent import Sgd
from bouquet.core.round import Part, Total, row_of, united
from bouquet.core.scheme import Federation, Member, Round, Work
from bouquet.core.trees import flatten, pick, raw_bytes, unflatten
from bouquet.engines import LocalNodes, simulate, with_nodes
from bouquet.flower import wire
from bouquet.flower.exchange import exchange
from bouquet.objects import SchemeLike
from bouquet.problem import Problem, problem
from bouquet.server_app.main import Job
from bouquet.server_app.membership import message
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder
from bouquet.storage.runs import read
from bouquet.storage.state import Identity, PersonalState

# Clients of unequal size and few of them a round, so that laws are not met by luck.
SMALL: dict[str, Any] = {
    "rounds": 3,
    "clients_per_round": 3,
    "local_steps": 4,
    "batch_size": 8,
    "nodes": 2,
    "data": {"name": "digits", "clients": 5, "partition": "dirichlet"},
    "model": {"name": "mlp", "hidden": 8, "layers": 1},
}
# In double precision, what should be equal but for rounding is.
ROUNDING = 1e-11


@dataclass
class Laboratory:
    """A scheme under test, and the runs that were made of it: each once.

    Parameters
    ----------
    scheme : str, Scheme or class
        As :func:`bouquet.simulate` takes it.
    folder : Path
        For the runs.
    keys : mapping
        Keys that the scheme cannot do without.
    """

    scheme: SchemeLike
    folder: Path
    keys: Mapping[str, Any] = field(default_factory=dict)
    _runs: dict[Settings, Path] = field(default_factory=dict)

    def settings(self, **changes: Any) -> Settings:
        """A small problem."""
        return with_nodes(parse(keys_of_program(self.scheme, SMALL | changes | dict(self.keys))))

    def run(self, settings: Settings) -> Path:
        """The folder of a run, which was made now or before."""
        if settings not in self._runs:
            place = self.new()
            simulate([Job(settings, RunFolder(place))], "inline")
            self._runs[settings] = place
        return self._runs[settings]

    def resumed(self, settings: Settings, stopped: Path) -> Path:
        """A copy of a run that stopped, gone on to the end."""
        place = self.new()
        shutil.copytree(stopped, place)
        simulate([Job(settings, RunFolder(place), resume=True)], "inline")
        return place

    def new(self) -> Path:
        """A folder that is not there yet."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"


Law = Callable[[Laboratory], None]
LAWS: dict[str, Law] = {}


def law(check: Law) -> Law:
    """Make a function one of the laws."""
    LAWS[check.__name__] = check
    return check


def check_scheme(
    scheme: SchemeLike, *, keys: Mapping[str, Any] | None = None, laws: Iterable[str] = ()
) -> None:
    """Run a scheme through the laws; the first that is broken raises ``AssertionError``.

    Parameters
    ----------
    scheme : str, Scheme or class
        As :func:`bouquet.simulate` takes it.
    keys : mapping, optional
        Keys it cannot do without, such as ``{"clients_per_round": 0}``.
    laws : iterable of str
        Only these, of ``LAWS``; all without.
    """
    with tempfile.TemporaryDirectory(prefix="bouquet-") as folder:
        room = Laboratory(scheme, Path(folder), keys or {})
        for name in laws or LAWS:
            try:
                LAWS[name](room)
            except AssertionError as error:
                words = name.replace("_", " ")
                raise AssertionError(f"{scheme!r} breaks the law: {words}. {error}") from error


@law
def changes_nothing_it_is_given(room: Laboratory) -> None:
    """A scheme's methods are pure: others may hold the same tensors."""
    settings = room.settings()
    scheme = settings.scheme
    loaded, work, payload, personal = one_client(settings)
    _, personal = scheme.local_update(work, payload, personal)  # no longer the initial one
    server = welcomed(settings, loaded)
    given = (work.batches, payload, personal, loaded.task.initial, server)
    before = copy.deepcopy(given)
    upload, _ = scheme.local_update(work, payload, personal)
    scheme.predictor(work, payload, personal)
    scheme.aggregate(server, as_round(settings, loaded, upload))
    assert_same(given, before)


@law
def gives_the_same_answer_twice(room: Laboratory) -> None:
    """Nothing is drawn but from what the client is given."""
    settings = room.settings()
    _, work, payload, personal = one_client(settings)
    update = settings.scheme.local_update
    assert_same(update(work, payload, personal), update(work, payload, personal))


@law
def sends_nothing_personal(room: Laboratory) -> None:
    """Every byte and number of every reply, searched for what the clients keep.

    Each client has a node of its own, so that no mean hides it, and numbers are doubles, so that
    none turns up by chance.
    """
    keys = {"nodes": 5, "dtype": "float64", "clients_per_round": 0, "store": "disk"}
    settings, folder = room.settings(**keys), room.new().parent
    scheme, task = settings.scheme, problem(settings).task
    with closing(LocalNodes(settings.run.nodes)) as grid:
        replies = [
            reply
            for round_ in (1, 2)
            for kind in (MessageType.TRAIN, MessageType.EVALUATE)
            for reply in ask(grid, settings, folder, round_, kind)
        ]
    secrets = _moved_twice(folder) if scheme.first_shows else _kept(folder)
    if scheme.first_shows:
        replies = [reply for reply in replies if reply.metadata.group_id == "2"]
    secrets -= numbers([*task.initial.values(), *flatten(scheme.init_personal(task, 1)).values()])
    secrets -= {0.0, 1.0}
    assert bool(secrets) == scheme.stateful, "its clients keep nothing, or nothing that moves"
    for reply in replies if not scheme.exception else ():
        assert not secrets & sent_numbers(reply), "a number that a client keeps was sent"
        sent = sent_bytes(reply)
        some = sorted(secrets)[:: max(1, len(secrets) // 50)]
        found = [one for one in some if np.float64(one).tobytes() in sent]
        assert not found, "bytes that a client keeps were sent"


@law
def keeps_its_state_on_disk_bit_for_bit(room: Laboratory) -> None:
    """What a client keeps is a record of tensors and nothing else."""
    settings, folder = room.settings(), room.new()
    scheme = settings.scheme
    _, work, payload, personal = one_client(settings)
    _, personal = scheme.local_update(work, payload, personal)
    identity = Identity(scheme.name, scheme.version, "shape", "000")
    DiskStore(folder).save(PersonalState(identity, 1, flatten(personal)))
    state = DiskStore(folder).load(identity, before=2)
    assert state is not None
    assert_same(unflatten(scheme.records.personal, state.tensors), personal)


@law
def answers_a_message_delivered_twice_alike(room: Laboratory) -> None:
    """A network may deliver a message again, in any store."""
    for store in ("memory", "context", "disk"):
        settings, folder = room.settings(store=store, clients_per_round=0), room.new()
        with closing(LocalNodes(settings.run.nodes)) as grid:
            ask(grid, settings, folder, 1)
            once, again = (ask(grid, settings, folder, 2) for _ in range(2))
        for one, other in zip(once, again, strict=True):
            assert sent_bytes(one) == sent_bytes(other), f"other bytes, with store {store}"
            assert _metrics(one) == _metrics(other), f"other numbers, with store {store}"


@law
def ends_after_a_stop_as_if_never_stopped(room: Laboratory) -> None:
    """The run's folder holds all there is to know."""
    five = room.settings(rounds=5)
    assert_same_end(room.run(five), room.resumed(five, room.run(room.settings(rounds=2))))


@law
def resumes_exactly_when_killed_within_a_round(room: Laboratory) -> None:
    """The clients have done round 3; the server only remembers round 2."""
    five, killed = room.settings(rounds=5), room.new()
    shutil.copytree(room.run(room.settings()), killed)
    checkpoint = Path("server") / "checkpoint.safetensors"
    shutil.copy(room.run(room.settings(rounds=2)) / checkpoint, killed / checkpoint)
    assert_same_end(room.run(five), room.resumed(five, killed))


@law
def computes_in_a_cohort_what_clients_compute_alone(room: Laboratory) -> None:
    """Batched and one by one differ by rounding alone."""
    together, alone = (room.settings(dtype="float64", cohort=how) for how in ("vmap", "loop"))
    assert_close(room.run(together), room.run(alone))


@law
def lets_clients_that_finish_early_wait_without_moving(room: Laboratory) -> None:
    """Passes over unequal data are unequally many steps."""
    keys = {"dtype": "float64", "local_steps": 0, "local_epochs": 1, "batch_size": 64}
    together, alone = (room.settings(cohort=how, **keys) for how in ("vmap", "loop"))
    assert_close(room.run(together), room.run(alone))


@law
def does_not_depend_on_the_number_of_nodes(room: Laboratory) -> None:
    """But for rounding."""
    two, five = (room.settings(dtype="float64", cohort="vmap", nodes=count) for count in (2, 5))
    assert_close(room.run(two), room.run(five))


def one_client(settings: Settings) -> tuple[Problem, Work, Any, Any]:
    """A client's work in a round, what it received, and what it keeps."""
    loaded, scheme = problem(settings), settings.scheme
    own = loaded.data.clients["000"].train
    drawn = draw(["000"], [own], Plan(4, 0, 8, scheme.draws), (0, "train", 1), settings.dtype)
    batches = steps(pick(gather(loaded.data.x, loaded.data.y, drawn), 0))
    payload = row_of(scheme, scheme.downlink(welcomed(settings, loaded), ["000"]), 0)
    work = Work(loaded.task, Sgd(0.1), batches, steps=4)
    return loaded, work, payload, scheme.init_personal(loaded.task, len(own))


def welcomed(settings: Settings, loaded: Problem) -> Any:
    """The server's state when everyone is there."""
    server = settings.scheme.init_server(loaded.task)
    return settings.scheme.welcome(server, federation(settings, loaded))


def federation(settings: Settings, loaded: Problem) -> Federation:
    """Everyone."""
    held = loaded.data.clients
    members = {one: Member(len(held[one].train), 1.0) for one in sorted(held)}
    return Federation(members, settings.model.name, settings.run.lr, settings.run.local_steps)


def as_round(settings: Settings, loaded: Problem, upload: Any) -> Round[Any]:
    """A round in which one client took part."""
    rows = {name: value.unsqueeze(0) for name, value in flatten(upload).items()}
    total = Total(settings.scheme)
    total.add(unflatten(settings.scheme.records.upload, rows), torch.ones(1))
    part = Part(["000"], 1.0, total.mean(1.0))
    return united(settings.scheme, [part], federation(settings, loaded), 1)


def ask(
    grid: LocalNodes,
    settings: Settings,
    folder: Path,
    round_: int,
    kind: str = MessageType.TRAIN,
) -> list[Message]:
    """Send the nodes a message about all their clients; replies in the order of the nodes."""
    loaded = problem(settings)
    server, nodes = welcomed(settings, loaded), sorted(grid.get_node_ids())
    messages = []
    for place, node in enumerate(nodes):
        clients = sorted(loaded.data.clients)[place :: len(nodes)]
        weights = [1.0] * len(clients)
        note: dict[str, Any] = {"round": round_, "clients": clients, "weights": weights}
        note |= {"state-dir": str(folder), "predictors-dir": "", "adapt": -1}
        tree = flatten(settings.scheme.downlink(server, clients))
        messages.append(message(settings, node, kind, round_, tree, ConfigRecord(note)))
    replies = exchange(grid, messages, 0.0, threading.Event())
    failed = [reply.error for reply in replies if reply.has_error()]
    assert not failed, f"a node failed: {failed}"
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)


def sent_bytes(reply: Message) -> bytes:
    """All that a reply's arrays are made of."""
    return b"".join(a.data for _, a in sorted(reply.content.array_records[wire.ARRAYS].items()))


def sent_numbers(reply: Message) -> set[float]:
    """All numbers of a reply."""
    found = numbers(wire.unpack(reply.content.array_records[wire.ARRAYS]).values())
    for value in reply.content.metric_records[wire.METRICS].values():
        found |= {float(one) for one in (value if isinstance(value, list) else [value])}
    return found


def numbers(tensors: Iterable[Tensor]) -> set[float]:
    """All numbers of some tensors."""
    return {number for tensor in tensors for number in tensor.double().flatten().tolist()}


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, whatever the nesting."""
    if isinstance(one, Tensor):
        assert raw_bytes(one) == raw_bytes(other), "a tensor is another"
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), "there are other names"
        for name in one:
            assert_same(one[name], other[name])
    else:
        for part, twin in zip(one, other, strict=True):
            assert_same(part, twin)


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs that ended with the same bits."""
    shas = [read(run).summary["shared_sha256"] for run in (one, other)]
    assert shas[0] == shas[1], "the shared weights are others"
    assert _table(one) == _table(other), "the clients' numbers are others"


def assert_close(one: Path, other: Path) -> None:
    """Two runs that ended alike but for rounding."""
    for row, twin in zip(_table(one), _table(other), strict=True):
        for name in row.keys() - {"client", "node"}:
            gap = abs(float(row[name]) - float(twin[name]))
            assert gap <= ROUNDING, f"{name} of client {row['client']} is {gap:g} apart"
    means = [read(run).summary["shared"]["loss"]["mean"] for run in (one, other)]
    assert math.isclose(*means, abs_tol=ROUNDING), "the shared losses are apart"


def _table(run: Path) -> list[dict[str, str]]:
    with open(run / "clients.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _kept(folder: Path) -> set[float]:
    return {n for file in folder.glob("*.safetensors") for n in numbers(_tensors(file).values())}


def _moved_twice(folder: Path) -> set[float]:
    """Numbers of the newest states at places that were not 0 in the states before."""
    found: set[float] = set()
    for file in folder.glob("*.previous.safetensors"):
        before, newest = (
            _tensors(file),
            _tensors(file.with_name(file.name.replace(".previous", ""))),
        )
        found |= {n for k, v in newest.items() for n in v[before[k] != 0].tolist()}
    return found


def _tensors(file: Path) -> dict[str, Tensor]:
    return read_state(file).tensors


def _metrics(reply: Message) -> dict[str, Any]:
    found = reply.content.metric_records[wire.METRICS].items()
    return {name: value for name, value in found if not name.startswith("seconds")}
