"""What nodes answer, read strictly.

A reply becomes a record whose every value was checked, or is refused with the reason: no bytes
a node can send end a run, and none get into it unseen.
"""

import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Message, MessageType
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES, SEVERAL, VALUES, prefix
from bouquet.core.trees import Tree, is_finite
from bouquet.core.untrusted import (
    MOST,
    Malformed,
    ids,
    listed,
    names,
    number,
    real,
    text,
    whole,
)
from bouquet.flower import wire

RECORDS = (wire.ARRAYS, wire.METRICS, wire.NOTE)
# Every reply says how long these took.
WORK = ("training", "evaluation")
# Limits no honest node comes near: beyond them numbers lose digits, and a model its memory.
MOST_EXAMPLES = 2**53
MOST_INPUTS = 2**24
MOST_CLASSES = 2**20
MOST_NODES = 2**20
# A reason goes into every line of a log.
LONGEST_REASON = 500
# Bytes. An introduction may have thousands of clients and the names of all classes and columns; a
# reply has some words and numbers for each client, and a header for each array.
LARGEST_INTRODUCTION = 2**26
WORDS, WORDS_OF_A_CLIENT, HEADER = 2**20, 2**12, 2**10
# How Flower words what a node of ours refuses with a sentence.
_OURS = re.compile(r"<class 'bouquet\.[\w.]+'>:<'(.+)'>", re.DOTALL)
# What a node's introduction may leave out.
_PERHAPS = ("buffers", "class-names", "input-names", "targets", "warning")


class Refused(Exception):
    """A reply that is left out, and why."""


@dataclass(frozen=True)
class Reply:
    """What a node says about its work.

    Parameters
    ----------
    clients : list of str
        Those that did it.
    failures : dict
        The others, and why.
    diverged : list of str
        Those among the failures whose training gave NaN or infinity.
    weight : float
        Of the clients' uploads together.
    arrays : Tree
        The uploads.
    scores : dict
        For each measure a number for each of ``clients``.
    seconds : dict
        By kind of work.
    """

    clients: list[str]
    failures: dict[str, str]
    diverged: list[str]
    weight: float
    arrays: Tree
    scores: dict[str, list[float]]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Facts:
    """What the server must know of the data to build the model; it never sees the data.

    Parameters
    ----------
    input_shape : tuple of int
        Of one example.
    classes : int
        Or values to predict; 0 for quadratic problems.
    init : Tensor or None
        Where the weights of a quadratic problem start.
    names : tuple of str
        What the classes are called; empty where nobody says.
    inputs : tuple of str
        What the inputs are called, likewise.
    buffers : tuple of str
        What a model saves beside its parameters, with the marks of statistics.
    targets : str
        What is predicted: ``classes``, ``values`` or ``several`` labels.
    """

    input_shape: tuple[int, ...]
    classes: int
    init: Tensor | None
    names: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    targets: str = CLASSES

    def differs(self, other: "Facts") -> str:
        """What two nodes do not agree on; empty if all is well."""
        if self.input_shape != other.input_shape:
            return f"the data's shape: {self.input_shape} and {other.input_shape}"
        if self.targets != other.targets:
            return f"what is predicted: {self.targets} and {other.targets}"
        if self.classes != other.classes:
            return f"the number of classes: {self.classes} and {other.classes}"
        if self.names != other.names:
            return "the classes' names: classes.txt must be one for all"
        if self.inputs != other.inputs:
            return "the columns of inputs or their order: name them in data.columns"
        if self.buffers != other.buffers:
            return "the model's buffers"
        return "" if _same(self.init, other.init) else "where the weights start"


@dataclass(frozen=True)
class Introduced:
    """A client as its node introduces it."""

    id: str
    train_examples: int
    test_examples: int
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Introduction:
    """A node's answer to the question who lives there.

    Parameters
    ----------
    facts : Facts
        About the data.
    clients : list of Introduced
        Those it hosts.
    nodes : int
        How many nodes it says there are.
    warning : str
        What a simulated node finds odd about the data; empty for nothing.
    """

    facts: Facts
    clients: list[Introduced]
    nodes: int
    warning: str = ""


def measures(metric: str, parts: Sequence[str] = ("test",)) -> list[str]:
    """The numbers an evaluation gives of each client, in the order of all tables."""
    kinds = (metric, "loss") if metric else ("loss",)
    return [
        f"{prefix(part)}{whose}_{kind}"
        for part in parts
        for whose in ("shared", "personal")
        for kind in kinds
    ]


def largest(uploads: int, arrays: int, clients: int) -> int:
    """Bytes that a reply may have, given those of its arrays, how many they are, and of whom."""
    return uploads + HEADER * arrays + WORDS + WORDS_OF_A_CLIENT * clients


def read_reply(
    reply: Message,
    kind: str,
    round_: int,
    asked: Collection[str],
    metric: str,
    parts: Sequence[str] = ("test",),
    most: int = MOST,
) -> Reply:
    """A reply to a message of a kind, or a refusal.

    A node that passes on a mistake of its user's raises :class:`BadInput` with the node's sentence.

    Parameters
    ----------
    reply : Message
        As it came.
    kind : str
        What was asked for: training or evaluation.
    round_ : int
        In which round.
    asked : collection of str
        The clients the node was asked about.
    metric : str
        What the task is measured by beside the loss; empty for nothing.
    parts : sequence of str
        Which of the clients' examples were to be evaluated.
    most : int
        Bytes it may have.
    """
    with _refusing():
        _check_kind(reply, kind)
        _check_size(reply, most)
        names(reply.content, "its records", RECORDS)
        note = reply.content.config_records[wire.NOTE]
        _pass_on(note)
        names(note, "its words", ("round", "clients", "failed", "reasons", "diverged"))
        if (said := whole(note["round"], "round")) != round_:
            raise Refused(f"a late reply of round {said}")
        clients = _known(note["clients"], "clients", asked)
        failed = _known(note["failed"], "failed", asked)
        if set(clients) & set(failed):
            raise Malformed("a client is named twice, as done and as failed")
        reasons = listed(note["reasons"], "reasons", text, len(failed))
        diverged = _known(note["diverged"], "diverged", failed)
        numbers = reply.content.metric_records[wire.METRICS]
        scored = measures(metric, parts) if clients and kind == MessageType.EVALUATE else []
        spent = [f"seconds_{what}" for what in WORK]
        names(numbers, "its metrics", ("weight", *spent, *scored))
        return Reply(
            clients,
            {client: _short(why) for client, why in zip(failed, reasons, strict=True)},
            diverged,
            number(numbers["weight"], "weight"),
            wire.unpack(reply.content.array_records[wire.ARRAYS]),
            {name: listed(numbers[name], name, _score(name), len(clients)) for name in scored},
            {what: number(numbers[f"seconds_{what}"], "seconds") for what in WORK},
        )


def read_introduction(reply: Message, most_examples: int = MOST_EXAMPLES) -> Introduction:
    """A node's introduction, or a refusal.

    A node that passes on a mistake of its user's raises :class:`BadInput` with the node's sentence.

    Parameters
    ----------
    reply : Message
        As it came.
    most_examples : int
        How many a client may say it has.
    """
    with _refusing():
        _check_kind(reply, MessageType.QUERY)
        _check_size(reply, LARGEST_INTRODUCTION)
        names(reply.content, "its records", RECORDS)
        note = reply.content.config_records[wire.NOTE]
        _pass_on(note)
        names(note, "its words", ["clients"], _PERHAPS)
        numbers = reply.content.metric_records[wire.METRICS]
        due = ("train_examples", "test_examples", "input_shape", "classes", "nodes")
        names(numbers, "its metrics", due, ["label_counts"])
        clients = ids(note["clients"], "clients")
        classes = whole(numbers["classes"], "classes", 0, MOST_CLASSES)
        shape = tuple(listed(numbers["input_shape"], "input_shape", _extent))
        if math.prod(shape) > MOST_INPUTS:
            raise Malformed(f"an example must have at most {MOST_INPUTS} numbers, not {shape}")
        arrays = wire.unpack(reply.content.array_records[wire.ARRAYS])
        facts = Facts(
            shape,
            classes,
            _start(arrays, shape, classes),
            _called(note, "class-names", classes),
            _called(note, "input-names", math.prod(shape)),
            tuple(ids(note.get("buffers", []), "buffers")),
            _predicted(note, classes),
        )
        return Introduction(
            facts,
            _introduced(clients, numbers, classes, most_examples),
            whole(numbers["nodes"], "nodes", 1, MOST_NODES),
            _short(text(note.get("warning", ""), "warning")),
        )


def _pass_on(note: Mapping[str, Any]) -> None:
    """Raise what a node says is its user's mistake."""
    if "refused" in note:
        raise BadInput(_short(text(note["refused"], "refused")))


def _predicted(note: Mapping[str, Any], classes: int) -> str:
    """What a node says is predicted: classes, unless it says otherwise."""
    said = note.get("targets", CLASSES)
    if said not in ((CLASSES, VALUES, SEVERAL) if classes else (CLASSES,)):
        raise Malformed("targets must be classes, values or several")
    return str(said)


def _called(note: Mapping[str, Any], what: str, count: int) -> tuple[str, ...]:
    """Names, if there are any: each of one line, for they are written one a line."""
    if what not in note:
        return ()
    found = listed(note[what], what, text, count)
    if any(len(name.splitlines()) != 1 for name in found):
        raise Malformed(f"{what} must be names of one line")
    return tuple(found)


def _introduced(
    clients: Sequence[str], numbers: Mapping[str, Any], classes: int, most: int
) -> list[Introduced]:
    def examples(value: object, what: str) -> int:
        return whole(value, what, 1, most)

    count = len(clients)
    train = listed(numbers["train_examples"], "train_examples", examples, count)
    test = listed(numbers["test_examples"], "test_examples", examples, count)
    labels: list[int] = []
    if "label_counts" in numbers:
        labels = listed(numbers["label_counts"], "label_counts", _labels, count * classes)
    return [
        Introduced(one, train[n], test[n], tuple(labels[n * classes : (n + 1) * classes]))
        for n, one in enumerate(clients)
    ]


def _start(arrays: Tree, shape: tuple[int, ...], classes: int) -> Tensor | None:
    """Where a quadratic problem starts: a point among the examples' own."""
    names(arrays, "its arrays", (), () if classes else ("init",))
    init = arrays.get("init")
    if init is None:
        return None
    if not init.is_floating_point() or tuple(init.shape) != shape[-1:] or not is_finite(arrays):
        raise Malformed(f"init must be {shape[-1:]} finite numbers")
    return init


def why_not(reply: Message) -> str:
    """The reason an error gives."""
    reason = reply.error.reason
    if not isinstance(reason, str) or not reason:
        return "an error without a reason"
    ours = _OURS.fullmatch(reason)
    return _short(ours[1] if ours else reason)


def _check_kind(reply: Message, kind: str) -> None:
    if reply.has_error():
        raise Refused(why_not(reply))
    if reply.metadata.message_type != kind:
        raise Refused(f"a reply to another kind of message, {reply.metadata.message_type}")


def _check_size(reply: Message, most: int) -> None:
    """Refuse what is too large by the sizes it declares, before anything is made of it."""
    found = wire.declared(reply.content)
    if found > most:
        raise Refused(f"a reply of {found} bytes where at most {most} are due")


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (Refused, BadInput):
        raise
    except Malformed as error:
        raise Refused(f"a malformed reply: {_short(str(error))}") from error
    except Exception as error:  # no bytes a node can send may end the run
        raise Refused(
            f"a malformed reply ({type(error).__name__}: {_short(str(error))})"
        ) from error


def _known(values: object, what: str, asked: Collection[str]) -> list[str]:
    found = ids(values, what)
    strangers = sorted(set(found) - set(asked))
    if strangers:
        raise Refused(f"a reply for clients that were not asked: {reprlib.repr(strangers)}")
    return found


def _score(name: str) -> Callable[[object, str], float]:
    """A loss may be NaN or infinite, which is how a run that diverges is noticed.

    So may a metric of the user's own, of which nothing is known.
    """
    return _share if name.endswith("_accuracy") else real


def _share(value: object, what: str) -> float:
    return number(value, what, 0, 1)


def _extent(value: object, what: str) -> int:
    return whole(value, what, 1, MOST_INPUTS)


def _labels(value: object, what: str) -> int:
    return whole(value, what, 0, MOST_EXAMPLES)


def _short(reason: str) -> str:
    plain = " ".join(reason[: 2 * LONGEST_REASON].encode("utf-8", "replace").decode().splitlines())
    return plain if len(plain) <= LONGEST_REASON else f"{plain[:LONGEST_REASON]} ..."


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
