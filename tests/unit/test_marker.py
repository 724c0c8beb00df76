"""Nodes of a cluster whose folder is not the run's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.clientapp import ClientApp

from bouquet.client_app.main import app
from bouquet.core.errors import BadInput
from bouquet.engines import LocalNodes
from bouquet.flower import wire
from bouquet.server_app.loop import run
from bouquet.settings import parse
from bouquet.storage.marker import check_shared, marked
from bouquet.storage.runfolder import RunFolder
from bouquet.sweeping.crew import _Actor

KEYS: dict[str, Any] = {
    "scheme": "apfl",
    "rounds": 3,
    "local-steps": 1,
    "eval-every": 1,
    "nodes": 2,
    "data.name": "synthetic",
    "data.clients": 4,
}
Follow = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Follow], Message]


def test_a_marker_is_there_for_a_while_and_leaves_no_folder_behind(tmp_path: Path) -> None:
    with marked(tmp_path / "new/run", tmp_path) as markers:
        assert [Path(one).parent for one in markers] == [tmp_path / "new/run", tmp_path]
        check_shared(markers)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadInput, match="is another folder than the run's"):
        check_shared(markers)


def test_a_folder_that_was_written_to_stays_and_a_killed_runs_marker_goes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with marked(folder):
        (folder / "config.toml").touch()
    (folder / ".marker-of-a-killed-one").touch()
    with marked(folder) as (marker,):
        assert sorted(one.name for one in folder.iterdir()) == [Path(marker).name, "config.toml"]
    assert [one.name for one in folder.iterdir()] == ["config.toml"]


def answering_as_ours(mod: Mod) -> ClientApp:
    """Our app with something between it and its messages."""
    outer = ClientApp(mods=[mod])
    for add in (outer.query, outer.train, outer.evaluate):
        add()(lambda message, context: app(message=message, context=context))
    return outer


def elsewhere(kind: str, round_: int) -> Mod:
    """A worker that is of another machine when some message comes to it: it sees other folders."""

    def mod(message: Message, context: Context, follow: Follow) -> Message:
        note = message.content.config_records[wire.NOTE]
        now = (message.metadata.message_type, note.get("round", 0)) == (kind, round_)
        if now and context.node_config["partition-id"] == 1:
            note["markers"] = [f"/elsewhere{one}" for one in cast(list[str], note["markers"])]
        return follow(message, context)

    return mod


@pytest.mark.parametrize("store", ["disk", "context"])
@pytest.mark.parametrize(
    ("kind", "round_"),
    [(MessageType.QUERY, 0), (MessageType.TRAIN, 2), (MessageType.EVALUATE, 2)],
)
def test_a_run_ends_at_the_first_message_that_a_stranger_gets(
    tmp_path: Path, kind: str, round_: int, store: str
) -> None:
    """Ray gives a message to whichever worker is free, so that each must look, each time."""
    folder, settings = RunFolder(tmp_path / "run"), parse(KEYS | {"store": store})
    grid = LocalNodes(2, answering_as_ours(elsewhere(kind, round_)))
    try:
        with pytest.raises(BadInput, match="all machines of a cluster must share it"):
            run(grid, settings, folder, engine="ray")
    finally:
        grid.close()
    assert not list(tmp_path.rglob(".marker-*"))
    assert folder.path.exists() is (round_ > 0)
    if round_:
        assert len(folder.read_events(9)) == round_ - 1


def test_devices_are_told_of_no_marker_and_their_word_ends_no_run(tmp_path: Path) -> None:
    """Their folders are their own; and a device that refuses a round is left out of it."""
    seen: list[Message] = []

    def watch(message: Message, context: Context, follow: Follow) -> Message:
        seen.append(message)
        place = int(context.node_config["partition-id"])
        if place and message.metadata.message_type == MessageType.TRAIN:
            note = ConfigRecord({"refused": "I do not like it."})
            return Message(wire.content({}, MetricRecord(), note), reply_to=message)
        words = {"client-id": f"00{place}", "state-dir": str(tmp_path / "device")}
        own = Context(1, place, {**context.node_config, **words}, context.state, {})
        return follow(message, own)

    grid, folder = LocalNodes(2, answering_as_ours(watch)), RunFolder(tmp_path / "run")
    try:
        run(grid, parse(KEYS | {"rounds": 1, "min-clients": 2}), folder, engine="grpc")
    finally:
        grid.close()
    assert not any("markers" in one.content.config_records[wire.NOTE] for one in seen)
    (event,) = folder.read_events(9)
    assert event["failures"] == [{"client": "001", "reason": "I do not like it."}]


def test_a_sweeps_worker_refuses_a_folder_that_is_not_the_sweeps(tmp_path: Path) -> None:
    (news,) = _Actor().train([], [str(tmp_path / "marker")])
    assert (news.kind, "must share it" in news.words) == ("refused", True)
