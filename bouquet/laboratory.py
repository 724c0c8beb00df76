"""A small problem to try a scheme on, and ways to look at what came of it."""

import csv
import math
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MessageType
from torch import Tensor

from bouquet.client_app.stores import read_state
from bouquet.core.batches import Plan, draw, gather, steps
from bouquet.core.round import Part, Total, row_of, united
from bouquet.core.scheme import Federation, Member, Round, Work
from bouquet.core.trees import flatten, pick, raw_bytes, unflatten
from bouquet.engines import LocalNodes, simulate, with_nodes
from bouquet.flower import wire
from bouquet.flower.exchange import exchange
from bouquet.objects import SchemeLike
from bouquet.problem import Problem, problem
from bouquet.program import keys_of_program
from bouquet.server_app.main import Job
from bouquet.server_app.membership import message
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder
from bouquet.storage.runs import read

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
            folder = self.new()
            simulate([Job(settings, RunFolder(folder))], "inline")
            self._runs[settings] = folder
        return self._runs[settings]

    def resumed(self, settings: Settings, stopped: Path) -> Path:
        """A copy of a run that stopped, gone on to the end."""
        folder = self.new()
        shutil.copytree(stopped, folder)
        simulate([Job(settings, RunFolder(folder), resume=True)], "inline")
        return folder

    def new(self) -> Path:
        """A folder that is not there yet."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"


def one_client(settings: Settings) -> tuple[Problem, Work, Any, Any]:
    """A client's work in a round, what it received, and what it keeps."""
    loaded, scheme = problem(settings), settings.scheme
    own = loaded.data.clients["000"].train
    drawn = draw(["000"], [own], Plan(4, 0, 8, scheme.draws), (0, "train", 1), settings.dtype)
    batches = steps(pick(gather(loaded.data.x, loaded.data.y, drawn), 0))
    data = draw(["000"], [own], Plan(0, 1, 8), (0, "train-data", 1), settings.dtype)
    seen = steps(pick(gather(loaded.data.x, loaded.data.y, data), 0))
    payload = row_of(scheme, scheme.downlink(welcomed(settings, loaded), ["000"]), 0)
    work = Work(loaded.task, settings.sgd, batches, steps=4, data=seen)
    return loaded, work, payload, scheme.init_personal(loaded.task, len(own))


def welcomed(settings: Settings, loaded: Problem) -> Any:
    """The server's state when everyone is there."""
    server = settings.scheme.init_server(loaded.task)
    return settings.scheme.welcome(server, federation(settings, loaded))


def federation(settings: Settings, loaded: Problem) -> Federation:
    """Everyone."""
    held = loaded.data.clients
    members = {client: Member(len(held[client].train), 1.0) for client in sorted(held)}
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
    for number, node in enumerate(nodes):
        clients = sorted(loaded.data.clients)[number :: len(nodes)]
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


def kept_numbers(folder: Path, fields: Collection[str] | None = None) -> set[float]:
    """All numbers of the states in a folder, or those of some fields."""
    return {
        number
        for file in folder.glob("*.safetensors")
        for name, value in _tensors(file).items()
        if fields is None or name.partition("/")[0] in fields
        for number in numbers([value])
    }


def moved_twice(folder: Path) -> set[float]:
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


def reported(reply: Message) -> dict[str, Any]:
    """A reply's metrics, but for how long they took."""
    metrics = reply.content.metric_records[wire.METRICS].items()
    return {name: value for name, value in metrics if not name.startswith("seconds")}
