"""Devices in this process: real messages, each device with its own folder, no server's paths."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message
from safetensors.torch import save_file

from bouquet.client_app.stores import read_state
from bouquet.core.errors import BadInput
from bouquet.engines import LocalNodes
from bouquet.flower.private import ErrorCode
from bouquet.problem import make_task
from bouquet.server_app.loop import run as run_loop
from bouquet.settings import parse
from bouquet.storage.events import Event
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies import SCHEMES
from tests.conftest import WORKING, Run, kebab

Start = Callable[..., Run]
Observer = Callable[["Devices", Event], None]
KEYS: dict[str, Any] = {
    "nodes": 3,
    "rounds": 3,
    "local_steps": 2,
    "data": {"name": "synthetic", "clients": 3, "examples": 12},
}
EVERYONE = ["000", "001", "002"]


class Devices(LocalNodes):
    """Nodes that are devices; those in ``hidden`` are switched off."""

    def __init__(self, folder: Path, clients: Iterable[str] = EVERYONE) -> None:
        ids = list(clients)
        super().__init__(len(ids))
        self.hidden: set[int] = set()
        for context, own in zip(self._contexts.values(), ids, strict=True):
            name = own.replace(",", "-")
            context.node_config = {"client-id": own, "state-dir": str(folder / name)}

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self._contexts if node not in self.hidden]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """A message to a node that is gone is never answered."""
        return [
            next(iter(super(Devices, self).push_messages([one])))
            if one.metadata.dst_node_id in self._contexts
            else "lost"
            for one in messages
        ]

    def rename(self, old: int, new: int) -> None:
        """A device that was restarted without a key."""
        self._contexts[new] = self._contexts.pop(old)
        self._contexts[new].node_id = new


@pytest.fixture
def deployed(tmp_path: Path) -> Callable[..., Run]:
    """Run on devices whose folders stay: ``deployed(scheme="apfl")``."""
    count = 0

    def run(
        observe: Observer = lambda grid, event: None, grid: Devices | None = None, **keys: Any
    ) -> Run:
        nonlocal count
        count += 1
        folder = RunFolder(tmp_path / f"deployed{count}")
        devices = grid or Devices(tmp_path / "devices")
        chosen = parse(kebab({"min_clients": 3} | KEYS | keys))
        try:
            run_loop(
                devices,
                chosen,
                folder,
                engine="grpc",
                observe=lambda event: observe(devices, event),
            )
        finally:
            devices.close()
        return Run(folder.path)

    return run


@pytest.mark.parametrize("scheme", [name for name in WORKING if not SCHEMES[name].pooled])
def test_every_scheme_ends_with_the_bits_of_a_simulation(
    start: Start, deployed: Start, scheme: str
) -> None:
    there, here = deployed(scheme=scheme), start(scheme=scheme, **KEYS)
    assert there.sha == here.sha
    shared = [(row["client"], row["shared_loss"], row["personal_loss"]) for row in there.clients]
    assert shared == [(r["client"], r["shared_loss"], r["personal_loss"]) for r in here.clients]


def test_devices_keep_their_moments_and_change_inputs_only_where_the_owner_lets_them(
    start: Start, tmp_path: Path, deployed: Start
) -> None:
    keys = {"optimizer": "adam", "optimizer_state": "keep", "lr_decay_per_step": 0.1, "lr": 0.01}
    keys |= {"augment": "tests.zoo:jitter"}
    with pytest.raises(BadInput, match=r"^augment .* is not allowed on the device .*--allow tests"):
        deployed(**keys)
    trusting = Devices(tmp_path / "trusting")
    for context in trusting._contexts.values():
        context.node_config |= {"allow": "tests.zoo:jitter"}
    assert deployed(grid=trusting, **keys).sha == start(**KEYS, **keys).sha


def test_a_gateway_has_a_state_for_each_client(
    start: Start, tmp_path: Path, deployed: Start
) -> None:
    grid = Devices(tmp_path / "devices", ["000,002", "001"])
    there, here = deployed(grid=grid, nodes=2), start(**KEYS | {"nodes": 2})
    assert there.sha == here.sha
    names = sorted(path.name for path in (tmp_path / "devices/000-002").rglob("00?.safetensors"))
    assert names == ["000.safetensors", "002.safetensors"]


def test_nothing_of_the_run_is_written_outside_a_devices_folder(
    tmp_path: Path, deployed: Start
) -> None:
    run = deployed(save_predictors=True)
    names = {path.name for path in run.path.iterdir()}
    logs = {"events.jsonl", "history.jsonl"}
    assert names == {"config.toml", "clients.csv", "summary.json", "server", *logs}
    told = [json.loads(one) for one in (run.path / "history.jsonl").read_text().splitlines()]
    assert told
    assert not {"alpha", "personal_norm", "drift"} & {name for line in told for name in line}
    assert (tmp_path / "devices/001/predictors/001.safetensors").exists()


def test_pooled_data_are_refused(deployed: Start) -> None:
    with pytest.raises(BadInput, match="centralized"):
        deployed(scheme="centralized")


def newest(folder: Path, client: str) -> dict[str, torch.Tensor]:
    path = sorted((folder / "devices" / client / "runs").glob(f"*/{client}.safetensors"))[-1]
    return read_state(path).tensors


def test_a_later_run_starts_fresh_or_keeps(
    tmp_path: Path, deployed: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(["run1", "run2", "run3"])
    monkeypatch.setattr("bouquet.server_app.loop.new_name", lambda: next(names))
    deployed(scheme="apfl")
    first = newest(tmp_path, "000")
    deployed(scheme="apfl")
    again = newest(tmp_path, "000")
    assert all(torch.equal(first[name], again[name]) for name in first)
    deployed(scheme="apfl", personal_from="keep")
    kept = newest(tmp_path, "000")
    assert not any(torch.equal(first[name], kept[name]) for name in first if "v/" in name)


def test_a_client_that_returns_on_another_node_moves_there_with_its_state(
    start: Start, deployed: Start
) -> None:
    def restart(grid: Devices, event: Event) -> None:
        if event["round"] == 1:
            grid.rename(2, 9)

    patient(run := deployed(restart, round_timeout=5.0, rounds=4))
    took_part = [event["round"] for event in run.events if "001" in event["clients"]]
    assert took_part[0] == 1
    assert took_part[-1] == 4


def patient(run: Run) -> None:
    """Nobody but the restarted client missed a round."""
    assert all({"000", "002"} <= set(event["clients"]) for event in run.events)


def test_the_first_round_waits_for_min_clients(tmp_path: Path, deployed: Start) -> None:
    grid = Devices(tmp_path / "devices")
    grid.hidden = {3}
    threading.Timer(1.0, grid.hidden.clear).start()
    run = deployed(grid=grid)
    assert all(event["clients"] == EVERYONE for event in run.events)


def test_a_new_device_joins_in_the_middle(tmp_path: Path, deployed: Start) -> None:
    grid = Devices(tmp_path / "devices")
    grid.hidden = {3}
    run = deployed(
        lambda devices, event: devices.hidden.clear(), grid=grid, min_clients=2, rounds=12
    )
    assert run.events[0]["clients"] == ["000", "001"]
    assert run.events[-1]["clients"] == EVERYONE
    assert len(run.clients) == 3


class Forgetful(Devices):
    """Devices of which the first loses messages of the second round, as when its app is killed."""

    def __init__(self, folder: Path, losses: int) -> None:
        super().__init__(folder)
        self.losses = losses

    def _answer(self, message: Message) -> Message:
        asked = message.metadata
        if (asked.dst_node_id, asked.group_id) == (1, "2") and self.losses:
            self.losses -= 1
            # Killed after the work was done and kept: doing it again must change nothing.
            super()._answer(message)
            return Message(Error(ErrorCode.CLIENT_APP_CRASHED, "crashed"), reply_to=message)
        return super()._answer(message)


def test_a_message_that_was_lost_is_sent_again(
    start: Start, tmp_path: Path, deployed: Start
) -> None:
    run = deployed(grid=Forgetful(tmp_path / "devices", losses=1), scheme="apfl")
    assert all(event["clients"] == EVERYONE for event in run.events)
    assert run.sha == start(scheme="apfl", **KEYS).sha


def test_a_message_that_is_lost_twice_is_given_up(tmp_path: Path, deployed: Start) -> None:
    run = deployed(grid=Forgetful(tmp_path / "devices", losses=2), scheme="apfl")
    assert [event["clients"] for event in run.events] == [EVERYONE, EVERYONE[1:], EVERYONE]
    assert run.events[1]["failures"] == [{"client": "000", "reason": "crashed"}]


def test_a_device_cannot_be_a_client_that_is_there_already(
    start: Start, tmp_path: Path, deployed: Start, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Devices(tmp_path / "devices", [*EVERYONE, "001"])
    grid.hidden = {4}
    run = deployed(lambda devices, event: devices.hidden.clear(), grid=grid, rounds=12)
    assert all(event["clients"] == EVERYONE for event in run.events)
    assert run.sha == start(**KEYS | {"rounds": 12}).sha
    assert "Node 4 says it is client 001, which is there already." in caplog.text


class Stuck(Devices):
    """Devices whose answers take a look at them longer than a round lasts."""

    stuck = False

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        if self.stuck:
            self.stuck = False
            time.sleep(1.5)
            return []
        return super().pull_messages(message_ids)


def test_answers_that_came_in_time_count_though_looking_took_too_long(
    tmp_path: Path, deployed: Start
) -> None:
    def get_stuck(grid: Stuck, event: Event) -> None:
        grid.stuck = event["round"] == 1

    grid = Stuck(tmp_path / "devices")
    run = deployed(get_stuck, grid=grid, round_timeout=1.0)
    assert run.events[1]["seconds"] > 1.5
    assert all(event["clients"] == EVERYONE for event in run.events)


# The record of what was sent


def test_a_device_records_each_reply_and_that_nothing_personal_was_in_it(
    tmp_path: Path, deployed: Start
) -> None:
    run = deployed(scheme="apfl")
    lines = records(tmp_path / "devices/000")
    assert [line["kind"] for line in lines] == ["query", "train", "train", "train", "evaluate"]
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 3]
    assert all(line["personal"] == [] for line in lines)
    assert {part["name"] for part in lines[1]["arrays"]} == {"w/output.weight", "w/output.bias"}
    everyone = [line for one in EVERYONE for line in records(tmp_path / "devices" / one)]
    sent = sum(line["bytes"] for line in everyone if line["kind"] != "query")
    assert sent == run.summary["bytes_up"]


def test_the_record_tells_when_what_is_kept_is_sent(tmp_path: Path, deployed: Start) -> None:
    """In dFedU a client's own model travels, which the scheme says of itself."""
    deployed(scheme="dfedu")
    assert any(line["personal"] for line in records(tmp_path / "devices/000"))


def records(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "sent").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


# Weights from a file


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A file of weights that fits the model."""
    own = make_task(parse(kebab(KEYS)), (60,), 10, None).initial
    save_file({name: value + 0.5 for name, value in own.items()}, tmp_path / "base.safetensors")
    return tmp_path / "base.safetensors"


def with_copies(folder: Path, *copies: str) -> Devices:
    """Devices whose owners gave some of them a file."""
    grid = Devices(folder)
    for context, copy in zip(grid._contexts.values(), copies, strict=True):
        context.node_config |= {"model.weights": copy} if copy else {}
    return grid


@pytest.mark.parametrize("scheme", ["fedavg", "apfl"])
def test_devices_without_the_file_are_told_where_personal_weights_start(
    start: Start, deployed: Start, base: Path, scheme: str
) -> None:
    keys = {"scheme": scheme, "model": {"weights": str(base)}}
    there, here = deployed(**keys), start(**KEYS | keys)
    assert there.sha == here.sha
    assert [row["personal_loss"] for row in there.clients] == [
        row["personal_loss"] for row in here.clients
    ]
    assert here.sha != start(**KEYS | {"scheme": scheme}).sha


def test_what_is_frozen_is_read_from_the_devices_own_files(
    start: Start, deployed: Start, base: Path, tmp_path: Path
) -> None:
    """One has another file and one has none: both are left out, and told why."""
    frozen = {"split": "lora-b", "rank": 2, "frozen": "*"}
    keys = {"scheme": "fedalt", "model": {"weights": str(base)}, "personal": frozen}
    grid = with_copies(tmp_path / "devices", *[str(base)] * 3)
    assert deployed(grid=grid, **keys).sha == start(**KEYS | keys).sha
    other = tmp_path / "other.safetensors"
    save_file({"output.weight": torch.zeros(2)}, other)
    for copies, why in (
        (["", str(base), str(base)], "needs that file on every node.*bouquet node --weights FILE"),
        ([str(base), str(other), str(base)], r"'model\.weights' must be the file whose SHA-256"),
    ):
        grid = with_copies(tmp_path / "devices", *copies)
        run = deployed(grid=grid, **keys | {"min_clients": 2, "rounds": 5})
        assert len(run.clients) == 2
        told = [one["reason"] for event in run.events for one in event.get("left_out", [])]
        assert told
        assert all(re.search(why, reason) for reason in told)
    nobody = with_copies(tmp_path / "devices", "", "", "")
    with pytest.raises(BadInput, match="needs that file on every node"):
        deployed(grid=nobody, **keys)


# What an owner does not allow


def with_policies(folder: Path, *policies: str) -> Devices:
    """Devices, some of which have an owner with rules."""
    grid = Devices(folder)
    for (node, context), text in zip(grid._contexts.items(), policies, strict=True):
        path = folder.with_name(f"policy{node}.toml")
        path.write_text(text)
        context.node_config |= {"policy": str(path)}
    return grid


def test_a_round_that_is_refused_is_that_clients_failure_and_nobody_elses(
    start: Start, tmp_path: Path, deployed: Start
) -> None:
    grid = with_policies(tmp_path / "devices", "", "rounds-a-day = 2", "")
    run = deployed(grid=grid, scheme="fedavg")
    assert [event["clients"] for event in run.events] == [EVERYONE, EVERYONE, ["000", "002"]]
    (failure,) = run.events[2]["failures"]
    assert failure["client"] == "001"
    assert "lets the device train 2 rounds a day." in failure["reason"]
    assert len(run.clients) == 3


def test_a_device_that_may_not_take_part_is_left_out_with_its_reason(
    tmp_path: Path, deployed: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rules = ("", 'schemes = ["fedavg"]', "")
    run = deployed(
        grid=with_policies(tmp_path / "devices", *rules), scheme="apfl", min_clients=2, rounds=1
    )
    assert len(run.clients) == 2
    assert "scheme 'apfl' is not allowed on the device of client 001" in caplog.text
    nobody = with_policies(tmp_path / "devices", *3 * ['schemes = ["fedavg"]'])
    with pytest.raises(BadInput, match="its owner lets it run fedavg"):
        deployed(grid=nobody, scheme="apfl")


def test_metrics_stay_where_the_owner_keeps_them(
    start: Start, tmp_path: Path, deployed: Start
) -> None:
    grid = with_policies(tmp_path / "devices", "", "metrics = false", "")
    run = deployed(grid=grid, scheme="apfl", save_predictors=True)
    assert run.sha == start(scheme="apfl", **KEYS).sha  # it trains with the others
    assert [row["client"] for row in run.clients if row["personal_loss"] != ""] == ["000", "002"]
    assert (tmp_path / "devices/001/predictors/001.safetensors").exists()
    told = [line for line in records(tmp_path / "devices/001") if line["kind"] == "evaluate"]
    assert not any(
        "loss" in name or "accuracy" in name for line in told for name in line["metrics"]
    )


def test_what_a_device_keeps_is_its_owners_whatever_the_umask_and_whatever_was_there(
    tmp_path: Path, deployed: Start
) -> None:
    own = tmp_path / "devices/000"
    for folder in (own, own / "runs", own / "sent", own / "predictors", own / "outcomes"):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    before = os.umask(0)
    try:
        deployed(scheme="apfl", save_predictors=True, save_outcomes=True)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "devices").rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"sent", "predictors", "outcomes"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    folders = {path.parent for path in files} | {own, own / "runs"}
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
