"""What a message asks of a node, read strictly: before anything is done, all of it is checked."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Message, MessageType

from bouquet.client_app.device import Device
from bouquet.core.errors import BadInput
from bouquet.core.trees import Tree, is_finite
from bouquet.core.untrusted import Malformed, ids, listed, number, text, whole
from bouquet.flower import wire
from bouquet.imports import is_path
from bouquet.settings import Settings, parse


@dataclass(frozen=True)
class Order:
    """A message's content.

    Parameters
    ----------
    settings : Settings
        Of the run.
    lr : float
        The round's learning rate.
    state_dir : str
        Where a simulated node keeps personal state; on a device, the run's name.
    arrays, warm : Tree
        What the server sends, and the weights a later stage starts from.
    round : int
        Its number; 0 in a question who lives here.
    first : int
        The number of its stage's first.
    clients : list of str
        Whose turn it is.
    weights : list of float
        Theirs in the mean, for training.
    adapt : int
        Rounds of local work that newcomers adapt by; -1 for those who are none.
    folders : dict
        Where a simulated node writes ``predictors``, ``outcomes`` and ``diagnostics``; empty
        for nowhere.
    markers : tuple of str
        Files that a simulated node must see, or its folders are not the run's.
    """

    settings: Settings
    lr: float
    state_dir: str
    arrays: Tree
    warm: Tree
    round: int
    clients: list[str]
    weights: list[float]
    adapt: int
    folders: dict[str, str]
    first: int = 1
    markers: tuple[str, ...] = ()


def read_order(message: Message, own: Device | None = None) -> Order:
    """What a message asks for, or a sentence that says why it cannot be followed.

    Words nobody here knows are left alone: a newer server may say more. A device loads no code
    that its owner did not allow.
    """
    try:
        if own is not None:
            own.refuse_strangers(message.content.config_records[wire.SETTINGS])
        return _order(message)
    except BadInput:
        raise
    except Malformed as error:
        raise BadInput(f"A message cannot be followed: {error}.") from error
    except Exception as error:  # no bytes a server can send may do more than this
        why = f"{type(error).__name__}: {error}"
        raise BadInput(f"A message cannot be followed ({why}).") from error


def _order(message: Message) -> Order:
    kind, content = message.metadata.message_type, message.content
    settings = _settings(content.config_records[wire.SETTINGS])
    note = content.config_records[wire.NOTE]
    asks = kind != MessageType.QUERY
    clients = ids(note["clients"], "clients") if asks else []
    train = kind == MessageType.TRAIN
    warm = content.array_records.get(wire.WARM)
    round_ = whole(note["round"], "round", low=1) if asks else 0
    return Order(
        settings,
        number(note.get("lr", settings.run.lr), "lr", high=torch.finfo(settings.dtype).max),
        text(note["state-dir"], "state-dir"),
        _sent(wire.unpack(content.array_records[wire.ARRAYS])),
        {} if warm is None else _sent(wire.unpack(warm)),
        round_,
        clients,
        listed(note["weights"], "weights", _weight, len(clients)) if train else [],
        whole(note.get("adapt", -1), "adapt", -1, settings.join.rounds),
        {what: _folder(note, what) for what in ("predictors", "outcomes", "diagnostics")},
        whole(note.get("first-round", 1), "first-round", 1, max(1, round_)),
        tuple(listed(note.get("markers", []), "markers", text)),
    )


def _settings(values: Mapping[str, Any]) -> Settings:
    """A run's settings, which are the same in all its messages and slow to check."""
    words = tuple(values.items())
    if any(isinstance(value, str) and is_path(value) for _, value in words):
        return parse(values)  # somebody's file, which may have changed
    return _parsed(words)


@functools.lru_cache(maxsize=64)
def _parsed(words: tuple[tuple[str, Any], ...]) -> Settings:
    return parse(dict(words))


def _sent(tree: Tree) -> Tree:
    if not is_finite(tree):
        raise Malformed("it has weights that are NaN or infinite")
    return tree


def _weight(value: object, what: str) -> float:
    found = number(value, what)
    if not found:  # a mean of nothing
        raise Malformed(f"{what} must be above 0")
    return found


def _folder(note: Mapping[str, object], what: str) -> str:
    return text(note.get(f"{what}-dir", ""), f"{what}-dir")
