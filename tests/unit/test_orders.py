"""Messages to a node: one that cannot be followed changes nothing, and says why in a sentence."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from bouquet.client_app.main import app
from bouquet.core.errors import BadInput
from bouquet.core.trees import Tree, flatten
from bouquet.flower import wire
from bouquet.problem import problem
from bouquet.server_app.membership import message
from bouquet.settings import parse
from tests.fuzzing import TINY, contents, identity

SETTINGS = parse(TINY | {"scheme": "apfl", "store": "disk"})
CONTEXT = Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with identity():
        yield


def sent() -> Tree:
    scheme = SETTINGS.scheme
    return flatten(scheme.downlink(scheme.init_server(problem(SETTINGS).task), []))


def order(folder: Path, kind: str, round_: int, **words: Any) -> Message:
    note: dict[str, Any] = {"round": round_, "clients": ["000", "002"], "weights": [1.0, 2.0]}
    note |= {"state-dir": str(folder), "adapt": -1, "lr": 0.1, **words}
    return message(SETTINGS, 1, kind, round_, sent(), ConfigRecord(note))


def words(**changes: Any) -> Callable[[RecordDict], object]:
    return lambda content: cast(dict[str, Any], content[wire.NOTE]).update(changes)


def keys(**changes: Any) -> Callable[[RecordDict], object]:
    return lambda content: cast(dict[str, Any], content[wire.SETTINGS]).update(changes)


def weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[RecordDict], object]:
    def changed(content: RecordDict) -> None:
        tree = wire.unpack(content.array_records[wire.ARRAYS])
        content[wire.ARRAYS] = wire.pack({name: change(value) for name, value in tree.items()})

    return changed


BAD: dict[str, tuple[Callable[[RecordDict], object], str]] = {
    "no note": (lambda content: content.pop(wire.NOTE), "KeyError: 'note'"),
    "no settings": (lambda content: content.pop(wire.SETTINGS), "KeyError: 'settings'"),
    "no arrays": (lambda content: content.pop(wire.ARRAYS), "KeyError: 'arrays'"),
    "a round that is no number": (words(round="2"), "round must be a whole number"),
    "a round that is true": (words(round=True), "round must be a whole number"),
    "round 0": (words(round=0), "at least 1"),
    "a stage yet to come": (words(**{"first-round": 3}), "first-round must be .* from 1 to 2"),
    "a client twice": (words(clients=["000", "000"]), "different ids"),
    "clients that are no list": (words(clients="000"), "clients must be a list"),
    "a learning rate that is NaN": (words(lr=float("nan")), "lr must be"),
    "a negative learning rate": (words(lr=-0.1), "lr must be"),
    "a folder that is a number": (words(**{"state-dir": 7}), "state-dir must be text"),
    "a folder no system knows": (words(**{"state-dir": "a\0b"}), "state-dir must be text"),
    "a learning rate past float32": (words(lr=1e39), "lr must be"),
    "a path no system knows": (keys(**{"data.path": "a\0b"}), "data.path must be text"),
    "an unknown key": (keys(wings=2), "Unknown key wings"),
    "a key out of range": (keys(lr=-1.0), "lr must be"),
    "a key of another type": (keys(rounds="many"), "rounds must be"),
    "weights that are NaN": (weights(lambda v: v * torch.nan), "NaN or infinite"),
    "weights of another shape": (weights(lambda v: v[None]), "does not fit this node's model"),
    "weights of another type": (weights(lambda v: v.double()), "does not fit this node's model"),
    "no weights": (lambda content: content[wire.ARRAYS].clear(), "does not fit"),
}
BAD_TRAINING = {
    "a negative weight": (words(weights=[1.0, -1.0]), "weights must be"),
    "a weight of nothing": (words(weights=[1.0, 0.0]), "above 0"),
    "too few weights": (words(weights=[1.0]), "2 entries, not 1"),
}
BAD_EVALUATION = {"endless adaptation": (words(adapt=2**62), "from -1 to 5")}


@pytest.mark.parametrize(
    ("kind", "what"),
    [("train", what) for what in BAD | BAD_TRAINING]
    + [("evaluate", what) for what in BAD | BAD_EVALUATION],
)
def test_a_message_that_cannot_be_followed_changes_no_state_and_is_answered_by_a_sentence(
    kind: str, what: str, tmp_path: Path
) -> None:
    app(order(tmp_path, "train", 1), CONTEXT)
    before = contents(tmp_path)
    assert before.keys() == {"000.safetensors", "002.safetensors"}
    bad = order(tmp_path, kind, 2)
    change, why = (BAD | BAD_TRAINING | BAD_EVALUATION)[what]
    change(bad.content)
    with pytest.raises(BadInput, match=why):
        app(bad, CONTEXT)
    assert contents(tmp_path) == before


def test_a_question_that_makes_no_sense_is_refused_in_a_sentence(tmp_path: Path) -> None:
    bad = order(tmp_path, "query", 0)
    del bad.content[wire.SETTINGS]
    note = app(bad, CONTEXT).content.config_records[wire.NOTE]
    assert note == {"refused": "A message cannot be followed (KeyError: 'settings')."}


def test_a_client_that_is_not_there_fails_alone(tmp_path: Path) -> None:
    reply = app(order(tmp_path, "train", 1, clients=["000", "nobody"]), CONTEXT)
    note = reply.content.config_records[wire.NOTE]
    assert (note["clients"], note["failed"]) == (["000"], ["nobody"])
    assert contents(tmp_path).keys() == {"000.safetensors"}


def test_words_of_a_newer_server_are_left_alone(tmp_path: Path) -> None:
    reply = app(order(tmp_path, "train", 1, news="x"), CONTEXT)
    assert reply.content.config_records[wire.NOTE]["clients"] == ["000", "002"]


def test_a_device_removes_what_a_killed_process_left_aside(tmp_path: Path) -> None:
    gone = max(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()) + 10_000
    config: dict[str, Any] = {"client-id": "000", "state-dir": str(tmp_path / "device")}
    context = Context(1, 1, config, RecordDict(), {})
    words = {"clients": ["000"], "weights": [1.0]}
    app(order(Path("run"), "train", 1, **words), context)
    states = tmp_path / "device" / "runs" / "run"
    mine, other = states / f".000.safetensors.{gone}.tmp", tmp_path / f".x.{gone}.tmp"
    for path in (mine, other):
        path.write_text("half")
    app(order(Path("run"), "train", 2, **words), context)
    assert not mine.exists()
    assert other.exists()
    assert (states / "000.previous.safetensors").exists()
