"""Seeded nonsense: keys, replies, introductions, messages and files, and what must hold of each.

A kind of case is a context that makes ready what all its cases share and gives a function of a
generator. The function does one case and returns ``REFUSED`` (a sentence said what is wrong) or
``ACCEPTED`` (all went on, and every invariant holds). Anything else is raised: a fault of ours.
``tests/unit/test_fuzz.py`` runs some hundreds of each kind, ``benchmarks/fuzz.py`` thousands.
"""

import json
import math
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, chdir, contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from torch import nn

from bouquet.client_app.main import app as client_app
from bouquet.client_app.main import forget
from bouquet.client_app.stores import read_state
from bouquet.continuing import resumed, settings_of
from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.measure import CLASSES, VALUES
from bouquet.core.seeding import generator
from bouquet.core.task import Task
from bouquet.core.trees import Tree, flatten, is_finite, sha256
from bouquet.engines import LocalNodes, simulate, with_nodes
from bouquet.flower import wire
from bouquet.flower.private import TaskIdentity, give_id
from bouquet.problem import make_task, problem
from bouquet.server_app import membership as roster_module
from bouquet.server_app.loop import run as run_loop
from bouquet.server_app.main import Job
from bouquet.server_app.membership import Client, Roster, message
from bouquet.server_app.replies import measures
from bouquet.server_app.strategy import SchemeStrategy
from bouquet.settings import Settings, all_keys, parse
from bouquet.storage.files import BadFile
from bouquet.storage.runfolder import RunFolder, to_json
from bouquet.strategies import registry

Random = np.random.Generator
Case = Callable[[Random], str]
REFUSED, ACCEPTED = "refused", "accepted"

# What a value is replaced with. Whole numbers are small or absurd: one in between would be
# followed, and take a while.
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 7, 2**53, 2**62, 2**63, -(2**63), 10**400),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-300, 1e30, 1e38, 1e308, math.nan, math.inf, -math.inf),
    *("", "x", "a", "000", "\ud800", "\0", "../..", "ü" * 3000, b"", b"\xff"),
    *([], [1], [1.0], ["a"], [""], [math.nan], [None], [[1]], ["a", "a"], {}, {"a": 1}),
]
# Names that mean something somewhere.
NAMES = ["round", "clients", "weight", "refused", "nodes", "shared_loss", "alpha", "w/x", "", "x"]


def pick(rng: Random, among: Iterable[Any]) -> Any:
    """One of some values, as it is."""
    values = list(among)
    return values[int(rng.integers(len(values)))]


def junk(rng: Random, old: Any = None) -> Any:
    """Something else in place of a value, often like it."""
    if isinstance(old, list) and old and rng.random() < 0.6:
        place, new = int(rng.integers(len(old))), list(old)
        changes: list[Callable[[], Any]] = [
            lambda: new.pop(place),
            lambda: new.append(new[place]),
            lambda: new.__setitem__(place, pick(rng, ODD)),
            lambda: new.reverse(),
        ]
        pick(rng, changes)()
        return new
    if isinstance(old, (int, float)) and rng.random() < 0.4 and abs(old) < 2**63:
        return pick(rng, [-old, old + 1, old + 0.5, float(old), str(old), [old]])
    return pick(rng, ODD)


def odd_array(rng: Random, packed: Array) -> Array:
    """An array of another shape, type or content, or bytes that are none."""
    try:
        old = packed.numpy().astype(np.float32)
    except Exception:  # it was disturbed before
        return packed
    with np.errstate(all="ignore"):
        arrays = [old.reshape(-1)[:1], old[None]]
        arrays += [old.astype(kind) for kind in ("?", "i8", "f2", "f8", "c8")]
        arrays += [np.full_like(old, value) for value in (np.nan, np.inf, 1e38, -3e38, 0)]
    packed = Array(np.ascontiguousarray(pick(rng, arrays)))
    if rng.random() < 0.3:
        packed = Array(packed.dtype, packed.shape, packed.stype, damaged(rng, packed.data))
    return packed


def damaged(rng: Random, content: bytes) -> bytes:
    """A file's content after an accident."""
    data = bytearray(content)
    how = int(rng.integers(7))
    if how == 0:
        return content[: int(rng.integers(len(content) + 1))]
    if how == 1:
        return bytes(rng.integers(0, 256, int(rng.integers(200)), dtype=np.uint8))
    if how == 2:
        return bytes(len(content))
    if how == 3:  # a block of a disk
        start = int(rng.integers(len(content) + 1))
        return content[:start] + bytes(min(512, len(content) - start)) + content[start + 512 :]
    for _ in range(int(rng.integers(1, 5)) if data else 0):
        place = int(rng.integers(len(data)))
        digits = b"0123456789eE.-\"'[]{},:\n"
        data[place] = pick(rng, digits) if how == 4 else data[place] ^ (1 << int(rng.integers(8)))
    if how == 5:
        return bytes(data) + content[-40:]
    return bytes(data)


def _said(error: Exception) -> str:
    """A refusal is one sentence or two, not a page."""
    assert 0 < len(str(error)) < 20_000
    return REFUSED


def _inside(record: Any) -> dict[str, Any]:
    """A record's values, without the checks Flower makes where one is set."""
    return cast(dict[str, Any], record.__dict__["_data"])


def disturb(rng: Random, content: RecordDict) -> None:
    """Change one to three things in a message's records."""
    for _ in range(int(pick(rng, [1, 1, 1, 2, 3]))):
        records = _inside(content)
        if not records:
            return
        name = pick(rng, records)
        record, how = records[name], rng.random()
        if how < 0.04:
            del records[name]
        elif how < 0.08:
            records[name] = pick(rng, [ConfigRecord(), MetricRecord(), ArrayRecord()])
        elif how < 0.1:
            records[str(pick(rng, NAMES))] = pick(rng, [ConfigRecord(), record])
        elif isinstance(record, ArrayRecord):
            _disturb_arrays(rng, record)
        else:
            _disturb_record(rng, record)


def _disturb_arrays(rng: Random, record: ArrayRecord) -> None:
    """Change a tensor among those that are packed as one array, or damage the array itself."""
    inside = _inside(record)
    if inside and rng.random() < 0.3:
        key = pick(rng, inside)
        one = inside[key]
        inside[key] = Array(one.dtype, one.shape, one.stype, damaged(rng, one.data))
        return
    with suppress(Exception):  # it was disturbed before
        inside.update(_inside(wire.named(wire.unpack(record))))
        inside.pop("tensors", None)
    _disturb_record(rng, record)
    if rng.random() < 0.5:
        with suppress(Exception):  # bytes that are no array: it stays as it is
            again = _inside(wire.pack(wire.unpack(record)))
            inside.clear()
            inside.update(again)


def _disturb_record(rng: Random, record: Any) -> None:
    inside = _inside(record)
    how = rng.random()
    if not inside or how < 0.1:
        like = next(iter(inside.values()), None)
        zeros = Array(np.zeros(2, np.float32))
        inside[pick(rng, NAMES)] = zeros if isinstance(record, ArrayRecord) else junk(rng, like)
        return
    key = pick(rng, inside)
    if how < 0.2:
        del inside[key]
    elif isinstance(record, ArrayRecord):
        inside[key] = odd_array(rng, inside[key])
    else:
        inside[key] = junk(rng, inside[key])


# Keys


@contextmanager
def configurations(folder: Path) -> Iterator[Case]:
    """Keys and values at random: settings that say the same when written down, or a sentence."""
    keys = all_keys()

    def case(rng: Random) -> str:
        chosen = [pick(rng, keys) for _ in range(int(rng.integers(1, 6)))]
        values = {one.name: _value(rng, one) for one in chosen}
        if rng.random() < 0.1:
            values[str(pick(rng, [*NAMES, "apfl.alfa", "stage2.lr", "stage9.lr"]))] = junk(rng)
        try:
            settings = parse(values)
        except BadInput as error:
            return _said(error)
        assert parse(settings.flat()) == settings
        for stage in settings.stages[:5]:
            assert settings.in_stage(stage).scheme.name == stage.scheme
        place = RunFolder(folder)
        place.write_config(settings.flat())
        assert settings_of(place) == settings
        return ACCEPTED

    yield case


def _value(rng: Random, key: Any) -> Any:
    """A value of a key: one that may be right, the edge of its range, or anything."""
    near = [key.default, *key.choices, key.low, key.high]
    if key.kind is int:
        near += [int(one) for one in (key.low, key.high) if math.isfinite(one)]
    if key.name == "scheme":
        near += [*registry.SCHEMES, ":", "x:y", "os:path", "./nowhere.py:Name"]
    if key.name == "pipeline":
        near += ["fedavg:2 fedalt:1", "fedavg:", "fedavg:0", ":", "fedavg:2 nothing:1", "x:y:z"]
    return pick(rng, near) if rng.random() < 0.6 else junk(rng, key.default)


# Replies

ROUND = 7
CLIENTS = [
    Client("a", node=11, place=0, train_examples=30, test_examples=1),
    Client("b", node=11, place=0, train_examples=10, test_examples=1),
    Client("c", node=12, place=1, train_examples=2, test_examples=1),
    Client("d", node=13, place=2, train_examples=4, test_examples=1),
]
SCHEMES: list[dict[str, object]] = [
    {"scheme": "fedavg"},
    {"scheme": "apfl", "server-optimizer": "adam"},
    {"scheme": "scaffold", "scaffold.server-lr": 3.0},
    {"scheme": "fedu"},
    {"scheme": "dfedu"},
    {"scheme": "afl", "evaluate-on": "test,train"},
    {"scheme": "ifca", "ifca.clusters": 3},
    {"scheme": "pfedme", "server-optimizer": "yogi", "weights": "agnostic"},
    {"scheme": "mocha", "mocha.omega": "learned", "mocha.omega-every": 1, "model.name": "linear"},
]


def strategy_of(keys: Mapping[str, object], classes: int) -> SchemeStrategy:
    """A strategy of a model of two numbers."""
    task = Task(nn.Identity(), {"x": torch.zeros(2)}, classes)
    return SchemeStrategy(parse(keys), task, Roster({one.id: one for one in CLIENTS}))


def asked(strategy: SchemeStrategy, kind: str) -> dict[int, Message]:
    """The messages of a round, by node."""
    ask = strategy.configure_train if kind == MessageType.TRAIN else strategy.configure_evaluate
    messages = ask(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    return {one.metadata.dst_node_id: one for one in messages}


def answer(strategy: SchemeStrategy, order: Message) -> Message:
    """What an honest node says."""
    note = dict(order.content.config_records[wire.NOTE])
    clients, training = cast(list[str], note["clients"]), order.metadata.message_type == "train"
    value = float(order.metadata.dst_node_id)
    metrics: dict[str, Any] = {"weight": 0.0, "seconds_training": value, "seconds_evaluation": 0.0}
    upload: Tree = {}
    if training:
        scheme = strategy.settings.scheme
        metrics["weight"] = sum(cast(list[float], note["weights"]))
        for name, one in flatten(scheme.upload_like(strategy.server)).items():
            own = name.partition("/")[0] in scheme.upload_rows
            upload[name] = torch.full((len(clients), *one.shape) if own else one.shape, value).to(
                one.dtype
            )
    else:
        scored = measures(strategy.task.measured, strategy.settings.parts)
        metrics |= {name: [value / 100] * len(clients) for name in scored}
    said = {"round": ROUND, "clients": clients, "failed": [], "reasons": [], "diverged": []}
    return Message(
        wire.content(upload, MetricRecord(metrics), ConfigRecord(cast(Any, said))), reply_to=order
    )


def disturb_reply(rng: Random, reply: Message) -> Message:
    """A reply with something wrong about it."""
    how = rng.random()
    if how < 0.02:
        reply.metadata.message_type = str(pick(rng, ["train", "evaluate", "query"]))
    elif how < 0.04:
        reply.metadata.__dict__["_src_node_id"] = int(pick(rng, [0, 12, 99]))
    elif how < 0.06:
        error = Error(int(rng.integers(9)), pick(rng, [None, "", "x", "\ud800", "x" * 10**5]))
        reply = _error(reply, error)
    else:
        disturb(rng, reply.content)
    return reply


def _error(reply: Message, error: Error) -> Message:
    """The same reply as an error."""
    failed = Message(RecordDict(), 1, reply.metadata.message_type)
    failed.__dict__.update(reply.__dict__)
    failed.__dict__["_content"], failed.__dict__["_error"] = None, error
    return failed


@contextmanager
def replies(folder: Path) -> Iterator[Case]:
    """A node that answers nonsense: it is left out, and the others' numbers are what they were."""

    def case(rng: Random) -> str:
        keys, classes = pick(rng, SCHEMES), int(pick(rng, [0, 2]))
        kind = str(pick(rng, [MessageType.TRAIN, MessageType.EVALUATE]))
        strategy, others = strategy_of(keys, classes), strategy_of(keys, classes)
        messages = asked(strategy, kind)
        bad = disturb_reply(rng, answer(strategy, messages[11]))
        good = [answer(strategy, messages[node]) for node in (12, 13)]
        good.insert(int(rng.integers(3)), bad)
        _take(strategy, kind, good)
        messages = asked(others, kind)
        _take(others, kind, [answer(others, messages[node]) for node in (12, 13)])
        report = strategy.report
        json.loads(to_json(vars(report)))
        assert {*report.clients, *report.failures} == {"a", "b", "c", "d"}
        state = flatten(strategy.server)
        assert is_finite(state)
        if bad.metadata.src_node_id == 12:  # it took the place of an honest node's
            return REFUSED
        shapes = {name: (value.shape, value.dtype) for name, value in state.items()}
        fresh = flatten(others.server).items()
        assert all(shapes[name] == (value.shape, value.dtype) for name, value in fresh)
        assert {"c", "d"} <= set(report.clients)
        assert all(report.scores.get(c) == others.report.scores.get(c) for c in "cd")
        if {"a", "b"} & set(report.clients):
            return ACCEPTED
        assert sha256(state) == sha256(flatten(others.server))
        assert all(report.failures[client] for client in "ab")
        return REFUSED

    with identity():
        yield case


def _take(strategy: SchemeStrategy, kind: str, found: list[Message]) -> None:
    if kind == MessageType.TRAIN:
        strategy.take_in(ROUND, found)
    else:
        strategy.aggregate_evaluate(ROUND, found)


@contextmanager
def identity() -> Iterator[None]:
    """Flower wants to know who makes a message."""
    known = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = known


# Introductions


class Told(LocalNodes):
    """Nodes that say at once, and in order, what they are told to."""

    def __init__(self, said: Mapping[int, RecordDict | Error]) -> None:
        super().__init__(len(said))
        self._said, self._ready = said, dict[str, Message]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See :class:`LocalNodes`."""
        ids = []
        for number, asked in enumerate(messages, start=len(self._ready)):
            give_id(asked, f"{asked.metadata.dst_node_id}/{number}")
            said = self._said[asked.metadata.dst_node_id]
            ids.append(asked.metadata.message_id)
            self._ready[ids[-1]] = Message(cast(Any, said), reply_to=asked)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See :class:`LocalNodes`."""
        wanted = set(message_ids)
        return [self._ready.pop(one) for one in list(self._ready) if one in wanted]


def introduction(rng: Random, node: int, classes: int, targets: str = CLASSES) -> RecordDict:
    """What an honest node of two clients says of itself."""
    clients = [f"{node}-{number}" for number in range(2)]
    metrics: dict[str, Any] = {
        "train_examples": [int(n) for n in rng.integers(1, 99, len(clients))],
        "test_examples": [int(n) for n in rng.integers(1, 99, len(clients))],
        "input_shape": [4] if classes else [4, 4],
        "classes": classes,
        "nodes": 2,
    }
    if classes and targets != VALUES:
        metrics["label_counts"] = [3] * classes * len(clients)
    arrays = {} if classes else {"init": torch.zeros(4)}
    note = ConfigRecord({"clients": clients})
    if targets != CLASSES:
        note["targets"] = targets
    return wire.content(arrays, MetricRecord(metrics), note)


@contextmanager
def introductions(folder: Path) -> Iterator[Case]:
    """A node that introduces itself with nonsense beside one that does not, and a round of both."""

    def case(rng: Random) -> str:
        classes, bad = int(pick(rng, [0, 3])), int(pick(rng, [1, 2]))
        targets = str(pick(rng, [CLASSES, VALUES])) if classes else CLASSES
        said: dict[int, RecordDict | Error] = {
            node: introduction(rng, node, classes, targets) for node in (1, 2)
        }
        honest = cast(RecordDict, said[3 - bad]).config_records[wire.NOTE]["clients"]
        if rng.random() < 0.05:
            said[bad] = Error(int(rng.integers(1, 4)), pick(rng, [None, "", "x" * 10**5]))
        else:
            disturb(rng, cast(RecordDict, said[bad]))
        data = {"data.name": "synthetic" if classes else "quadratic", "data.labels": targets}
        settings = parse({"scheme": str(pick(rng, ["fedavg", "afl", "fedu"])), **data})
        grid, roster = Told(said), Roster()
        try:
            roster.update(grid, settings, "", threading.Event(), deployed=rng.random() < 0.5)
            _check_roster(roster, settings)
        except (BadInput, RunFailed) as error:
            return _said(error)
        finally:
            grid.close()
        if 3 - bad in roster.nodes:  # else it has not answered, or came second and disagrees
            there = {one for one, who in roster.clients.items() if who.node == 3 - bad}
            assert there == set(cast(list[str], honest)) - _claimed(roster, bad)
        return ACCEPTED if any(who.node == bad for who in roster.clients.values()) else REFUSED

    with identity(), impatient():
        yield case


@contextmanager
def impatient() -> Iterator[None]:
    """Nobody waits for a node that only nonsense says is there."""
    with patch.multiple(roster_module, PATIENCE=0.0, DEPLOYED_PAUSE=0.001):
        yield


def _claimed(roster: Roster, node: int) -> set[str]:
    """The clients a node has by its own word; it may name another's before that one does."""
    return {one for one, who in roster.clients.items() if who.node == node}


def _check_roster(roster: Roster, settings: Settings) -> None:
    """Whoever was let in, a round can begin."""
    facts = roster.facts
    assert facts is not None
    for who in roster.clients.values():
        assert type(who.id) is str
        assert who.id
        assert all(type(n) is int and n > 0 for n in (who.train_examples, who.test_examples))
        assert all(type(n) is int and n >= 0 for n in who.labels)
    shape, targets = facts.input_shape, facts.targets
    task = make_task(settings, shape, facts.classes, facts.init, targets=targets)
    strategy = SchemeStrategy(settings, task, roster)
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    assert {one.metadata.dst_node_id for one in messages} <= roster.nodes
    assert is_finite(flatten(strategy.server))
    strategy.take_in(1, [])


# Messages to a node

# Small, so that a case takes milliseconds; what is left of what nodes and files may say.
TINY: dict[str, object] = {
    "nodes": 2,
    "rounds": 2,
    "local-steps": 1,
    "batch-size": 2,
    "data.name": "synthetic",
    "data.clients": 4,
    "data.examples": 8,
    "data.features": 3,
    "data.classes": 2,
    "model.name": "linear",
    "eval-every": 1,
}


@contextmanager
def messages(folder: Path) -> Iterator[Case]:
    """A server that sends nonsense: a sentence and nothing changed, or the work and no more."""
    settings = parse(TINY | {"scheme": "apfl", "store": "disk"})
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})
    task = problem(settings).task
    start = flatten(settings.scheme.downlink(settings.scheme.init_server(task), []))
    template, states = folder / "template", folder / "states"

    def order(kind: str, round_: int, place: Path) -> Message:
        clients = ["000", "002"]
        note: dict[str, Any] = {"round": round_, "clients": clients, "state-dir": str(place)}
        note |= {"weights": [1.0, 2.0], "lr": 0.1, "adapt": -1}
        note |= {f"{what}-dir": "" for what in ("predictors", "outcomes", "diagnostics")}
        return message(settings, 1, kind, round_, start, ConfigRecord(note))

    def case(rng: Random) -> str:
        shutil.rmtree(states, ignore_errors=True)
        shutil.copytree(template, states)
        kept = contents(states)
        sent = order(str(pick(rng, ["train", "evaluate", "query"])), 2, states)
        disturb(rng, sent.content)
        _spare_us(sent.content)
        try:
            reply = client_app(message=sent, context=context)
        except (BadInput, OSError) as error:  # a folder may have an impossible name
            assert contents(states) == kept
            return _said(error)
        finally:
            forget()
        _check_states(states, template)
        if sent.metadata.message_type != "train":
            assert contents(states) == kept
        note = reply.content.config_records[wire.NOTE]
        return REFUSED if "refused" in note or not note["clients"] else ACCEPTED

    with identity(), chdir(folder):
        client_app(message=order("train", 1, template), context=context)
        yield case


def _spare_us(content: RecordDict) -> None:
    """Absurd numbers of steps, clients or layers would be followed, and take forever."""
    for name, value in content.config_records.get(wire.SETTINGS, ConfigRecord()).items():
        if type(value) is int and 50 < value < 2**63:
            _inside(content[wire.SETTINGS])[name] = 50


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _check_states(states: Path, before: Path) -> None:
    """What a client had before it still has, as its newest state or as the one before that."""
    for path in before.glob("*.safetensors"):
        had = path.read_bytes()
        older = states / path.name.replace(".safetensors", ".previous.safetensors")
        assert had in [one.read_bytes() for one in (states / path.name, older) if one.exists()]
    for path in states.glob("*.safetensors"):
        assert is_finite(read_state(path).tensors)


# Files


@contextmanager
def files(folder: Path) -> Iterator[Case]:
    """A run's file after an accident: the run goes on, or ends with a sentence and no loss."""
    kinds: list[dict[str, object]] = [
        TINY | {"scheme": "apfl", "save-predictors": True},
        {k: v for k, v in TINY.items() if k != "rounds"} | {"pipeline": "fedavg:1 ditto:2"},
        TINY | {"scheme": "fedu", "server-lr": 1.0},
    ]
    finished = []
    for number, keys in enumerate(kinds):
        place = RunFolder(folder / f"whole{number}")
        simulate([Job(with_nodes(parse(keys)), place)], "inline")
        finished.append(place.path)
        numbers = {"round": 3, "clients": ["000"], "alpha": [0.5]}
        (place.path / "diagnostics").mkdir()
        (place.path / "diagnostics" / "0.json").write_text(json.dumps(numbers))
    run = folder / "run"

    def case(rng: Random) -> str:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(pick(rng, finished), run)
        victim = pick(rng, sorted(path for path in run.rglob("*") if path.is_file()))
        hurt = damaged(rng, victim.read_bytes())
        victim.write_bytes(hurt)
        if rng.random() < 0.05:
            victim.unlink()
        kept = contents(run / "state")
        place = RunFolder(run)
        try:
            settings = resumed(place, {})
            if not settings.run.pipeline:
                settings = resumed(place, {"rounds": settings.run.rounds + 1})
            simulate([Job(settings, place, True)], "inline")
        except (BadInput, RunFailed) as error:
            _check_kept(run, kept)
            return _said(error)
        check_run(run)
        _check_kept(run, kept)
        return ACCEPTED

    with chdir(folder):
        yield case


def _check_kept(run: Path, kept: Mapping[str, bytes]) -> None:
    """Personal state that cannot be read is left as it is, never replaced."""
    for name, before in kept.items():
        path = run / "state" / name
        try:
            read_state(path)
        except BadFile:
            assert path.read_bytes() == before


def check_run(run: Path) -> None:
    """A finished run's files say what they must."""
    folder = RunFolder(run)
    assert is_finite(folder.read_checkpoint().server)
    summary = json.loads((run / "summary.json").read_text("utf-8"), parse_constant=_no_number)
    for name in ("events", "history"):
        for line in (run / f"{name}.jsonl").read_text("utf-8").splitlines():
            json.loads(line, parse_constant=_no_number)
    assert len(folder.read_events(2**31)) <= summary["rounds"]
    assert (run / "clients.csv").read_text("utf-8").count("\n") == summary["clients"] + 1


def _no_number(word: str) -> float:
    raise AssertionError(f"{word} is not JSON")


# Whole runs


class _Disturbed(LocalNodes):
    """Nodes of which one answers nonsense now and then."""

    def __init__(self, rng: Random) -> None:
        super().__init__(2)
        self._rng, self._often = rng, float(pick(rng, [0.0, 0.2, 1.0]))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for reply in super().pull_messages(message_ids):
            now = reply.metadata.src_node_id == 2 and self._rng.random() < self._often
            if now and self._rng.random() < 0.05:
                reply.metadata.__dict__["_src_node_id"] = 1
            if now and reply.has_content():
                disturb(self._rng, reply.content)
            yield reply


@contextmanager
def runs(folder: Path) -> Iterator[Case]:
    """Whole runs with extreme keys and a node that answers nonsense."""
    keys = [one for one in all_keys() if one.kind is float and not one.name.startswith("data.")]
    keys = [one for one in keys if one.name != "round-timeout"]
    names = ["fedavg", "apfl", "ditto", "scaffold", "afl", "fedu", "plsgd", "pfedme", "perfedavg"]

    def case(rng: Random) -> str:
        shutil.rmtree(folder / "run", ignore_errors=True)
        scheme = str(pick(rng, names))
        near = [one for one in keys if "." not in one.name or one.name.startswith(scheme)]
        values = TINY | {"scheme": scheme, "dtype": str(pick(rng, ["float32", "float64"]))}
        for one in [pick(rng, near) for _ in range(int(rng.integers(3)))]:
            values[one.name] = float(
                pick(rng, [1e-300, 1e-9, 0.3, 0.9, 1.0, 3.0, 1e9, 1e38, 1e300])
            )
        values["on-divergence"] = str(pick(rng, ["stop", "drop"]))
        grid = _Disturbed(rng)
        try:
            run_loop(grid, parse(values), RunFolder(folder / "run"), engine="inline")
        except (BadInput, RunFailed) as error:
            return _said(error)
        finally:
            grid.close()
        check_run(folder / "run")
        return ACCEPTED

    with impatient():
        yield case


KINDS: dict[str, Callable[[Path], AbstractContextManager[Case]]] = {
    "configurations": configurations,
    "replies": replies,
    "introductions": introductions,
    "messages": messages,
    "files": files,
    "runs": runs,
}


def attempt(case: Case, seed: int, kind: str, number: int) -> str:
    """Do a case by its number; what it raises says which it was."""
    try:
        return case(generator(seed, "fuzz", kind, number))
    except Exception as error:
        error.add_note(f"{kind}: case {number} of seed {seed}")
        raise
