"""Runs whose nodes are slow, fail, send nonsense or come late; the faults are injected."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from bouquet.client_app import node as node_module
from bouquet.client_app.node import Node, Result
from bouquet.engines import LocalNodes
from bouquet.server_app import membership
from bouquet.server_app.loop import run as run_loop
from bouquet.server_app.replies import Introduction
from bouquet.settings import parse
from bouquet.storage.events import Event
from bouquet.storage.runfolder import RunFolder
from tests.conftest import Run, kebab

Start = Callable[..., Run]
KEYS: dict[str, Any] = {
    "nodes": 2,
    "rounds": 4,
    "local_steps": 2,
    "data": {"name": "synthetic", "clients": 4, "examples": 12},
}
train, introduction = Node.train, membership._introduction


def disturb(monkeypatch: pytest.MonkeyPatch, change: Callable[[Node, int, Result], Result]) -> None:
    """Let a fault change what nodes answer: ``change(node, round, result)``."""

    def disturbed(self: Node, round_: int, *rest: Any) -> Result:
        return change(self, round_, train(self, round_, *rest))

    monkeypatch.setattr(node_module.Node, "train", disturbed)


def test_a_slow_node_costs_the_timeout_and_takes_part_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(node: Node, round_: int, result: Result) -> Result:
        if "001" in result.clients and round_ == 2:
            time.sleep(5.0)
        return result

    start(**KEYS)  # libraries are warm now
    disturb(monkeypatch, slow)
    run = start(round_timeout=4.0, **KEYS)
    assert [event["clients"] for event in run.events] == [
        ["000", "001", "002", "003"],
        ["000", "002"],
        ["000", "001", "002", "003"],
        ["000", "001", "002", "003"],
    ]
    assert run.events[1]["failures"] == [
        {"client": "001", "reason": "no reply in time"},
        {"client": "003", "reason": "no reply in time"},
    ]


def test_a_node_that_raises_is_left_out_and_the_run_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(node: Node, round_: int, result: Result) -> Result:
        if "001" in result.clients and round_ == 2:
            raise OSError("the disk is on fire")
        return result

    disturb(monkeypatch, broken)
    run = start(**KEYS)
    assert run.events[1]["clients"] == ["000", "002"]
    assert "the disk is on fire" in run.events[1]["failures"][0]["reason"]
    assert run.events[2]["clients"] == ["000", "001", "002", "003"]
    assert run.summary["failures"] == 2


def test_a_node_that_answers_nan_is_left_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(node: Node, round_: int, result: Result) -> Result:
        if "001" in result.clients:
            result.mean = {k: torch.full_like(v, torch.nan) for k, v in result.mean.items()}
        return result

    disturb(monkeypatch, poisoned)
    run = start(**KEYS)
    assert all(event["clients"] == ["000", "002"] for event in run.events)
    assert "NaN" in run.events[0]["failures"][0]["reason"]


def test_a_node_cannot_answer_in_the_name_of_another(tmp_path: Path) -> None:
    class Forging(LocalNodes):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            for reply in super().pull_messages(message_ids):
                if reply.metadata.src_node_id == 2 and reply.metadata.message_type == "train":
                    reply.metadata.__dict__["_src_node_id"] = 1
                yield reply

    grid = Forging(2)
    try:
        run_loop(grid, parse(kebab(KEYS)), RunFolder(tmp_path / "run"), engine="inline")
    finally:
        grid.close()
    for event in Run(tmp_path / "run").events:
        assert event["clients"] == ["000", "002"]
        assert {one["reason"] for one in event["failures"]} == {"another node's reply"}


def test_a_round_without_a_valid_reply_keeps_the_weights(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(node: Node, round_: int, result: Result) -> Result:
        if round_ == 3:
            raise OSError("gone")
        return result

    two = start(**KEYS | {"rounds": 2})
    disturb(monkeypatch, broken)
    three = start(**KEYS | {"rounds": 3})
    assert three.sha == two.sha
    assert three.events[2]["clients"] == []


def test_a_node_that_comes_late_is_asked_and_takes_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second node appears when two rounds are done."""
    done = threading.Event()

    class Growing(LocalNodes):
        def get_node_ids(self) -> Iterable[int]:
            nodes = list(super().get_node_ids())
            return nodes if done.is_set() else nodes[:1]

    settings = parse(kebab(KEYS | {"nodes": 1}))
    grid = Growing(2)

    def observe(event: Event) -> None:
        if event["round"] == 2:
            done.set()

    monkeypatch.setattr(membership, "_introduction", one_is_enough)
    try:
        folder = RunFolder(tmp_path / "run")
        run_loop(grid, settings, folder, engine="inline", observe=observe)
    finally:
        grid.close()
    clients = [event["clients"] for event in Run(tmp_path / "run").events]
    assert clients == [["000", "002"]] * 2 + [["000", "001", "002", "003"]] * 2


def one_is_enough(*words: Any) -> Introduction:
    """A deployment's nodes do not say how many they are."""
    return replace(introduction(*words), nodes=1)
