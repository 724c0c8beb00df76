"""A device: who it is, where it keeps things, and what another run finds there."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from bouquet.client_app.device import Device, device
from bouquet.client_app.main import answering, app
from bouquet.client_app.orders import read_order
from bouquet.client_app.stores import FORMAT, DeviceStore, read_state
from bouquet.core.errors import BadInput
from bouquet.engines import LocalNodes
from bouquet.flower import wire
from bouquet.server_app.membership import message
from bouquet.settings import parse
from bouquet.storage.files import BadFile, seal
from bouquet.storage.state import Identity, PersonalState

OWN = Identity(scheme="apfl", version=1, fingerprint="shape", client="007")


def store(folder: Path, run: str, keep: bool = False) -> DeviceStore:
    return DeviceStore(folder / "runs" / run, folder / "runs", keep)


def state(round_: int, identity: Identity = OWN) -> PersonalState:
    return PersonalState(identity, round_, {"alpha": torch.tensor(float(round_))})


def test_a_node_without_a_client_id_is_simulated() -> None:
    assert device({"partition-id": 0, "num-partitions": 2}) is None


def test_a_device_hosts_one_client_or_several(tmp_path: Path) -> None:
    config = {"state-dir": str(tmp_path), "data.path": "mine"}
    assert device(config | {"client-id": 7}) == Device(("7",), tmp_path, "mine")
    assert device(config | {"client-id": "b, a"}) == Device(("a", "b"), tmp_path, "mine")


@pytest.mark.parametrize("ids", ["", "a,", "a,a"])
def test_ids_that_are_none_are_refused(ids: str) -> None:
    with pytest.raises(BadInput, match="client-id"):
        device({"client-id": ids, "state-dir": "here"})


def test_a_device_must_say_where_it_keeps_state() -> None:
    with pytest.raises(BadInput, match="state-dir"):
        device({"client-id": "a"})


def test_a_servers_name_for_a_run_is_no_way_out(tmp_path: Path) -> None:
    own = Device(("a",), tmp_path, "")
    for name in ("../../etc", "/etc", "a/../../..", "..", "run/stage2"):
        assert own.states(name).resolve().is_relative_to(own.runs.resolve())
    assert own.states("run/stage2") == own.runs / "run" / "stage2"


def test_a_new_run_starts_fresh_and_leaves_the_last_ones_state(tmp_path: Path) -> None:
    store(tmp_path, "1").save(state(5))
    later = store(tmp_path, "2")
    assert later.load(OWN, before=1) is None
    later.save(state(1))
    assert read_state(tmp_path / "runs" / "1" / "007.safetensors").round == 5


def test_a_run_that_keeps_goes_on_from_the_last_run(tmp_path: Path) -> None:
    store(tmp_path, "1").save(state(4))
    store(tmp_path, "2").save(state(5))
    store(tmp_path, "3").save(state(6, replace(OWN, scheme="ditto")))
    kept = store(tmp_path, "4", keep=True)
    for _ in range(2):  # a message delivered twice finds the same
        found = kept.load(OWN, before=1)
        assert found is not None
        assert (found.round, found.tensors["alpha"].item()) == (0, 5.0)
        kept.save(state(1))


def test_within_a_run_its_own_state_counts(tmp_path: Path) -> None:
    store(tmp_path, "1").save(state(9))
    kept = store(tmp_path, "2", keep=True)
    kept.save(state(1))
    found = kept.load(OWN, before=2)
    assert found is not None
    assert found.round == 1


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    store(tmp_path / "device", "1").save(state(1))
    assert (tmp_path / "device").stat().st_mode & 0o077 == 0


def truncated(content: bytes) -> bytes:
    return content[:-1]


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def foreign(content: bytes) -> bytes:
    return struct.pack("<Q", 2) + b"{}"


def newer_format(content: bytes) -> bytes:
    return seal("bouquet-personal-2", {}, {"alpha": torch.tensor(1.0)})


def newer_version(content: bytes) -> bytes:
    header = {"scheme": "apfl", "version": "2", "fingerprint": "shape", "client": "007"}
    return seal(FORMAT, header | {"round": "1"}, {"alpha": torch.tensor(1.0)})


@pytest.mark.parametrize("harm", [truncated, flipped, foreign, newer_format, newer_version])
@pytest.mark.parametrize("run", ["1", "2"])
def test_a_file_that_cannot_be_used_is_refused_by_name_and_left(
    tmp_path: Path, harm: Callable[[bytes], bytes], run: str
) -> None:
    """In the run that wrote it, and in one that would keep it."""
    store(tmp_path, "1").save(state(1))
    path = tmp_path / "runs" / "1" / "007.safetensors"
    path.write_bytes(harm(path.read_bytes()))
    harmed = path.read_bytes()
    with pytest.raises(BadFile, match=r"007\.safetensors"):
        store(tmp_path, run, keep=True).load(OWN, before=2)
    assert path.read_bytes() == harmed


# Messages


def answer(keys: dict[str, object], node_config: dict[str, str | int]) -> Message:
    """What a device says when it is asked who it is."""
    LocalNodes(1).close()  # Flower's messages want to know which run they are of
    note = ConfigRecord({"state-dir": "run"})
    asked = message(parse(keys), 1, MessageType.QUERY, 0, {}, note)
    context = Context(1, 1, dict(node_config), RecordDict(), {})
    return app(message=asked, context=context)


def test_a_device_has_its_own_clients_data_alone(tmp_path: Path) -> None:
    everyone = answer({"data.clients": 4}, {"partition-id": 0, "num-partitions": 1})
    own = answer({"data.clients": 4}, {"client-id": "002", "state-dir": str(tmp_path)})
    assert own.content.config_records[wire.NOTE]["clients"] == ["002"]
    counts: Any = everyone.content.metric_records[wire.METRICS]["train_examples"]
    assert own.content.metric_records[wire.METRICS]["train_examples"] == counts[2:3]


def test_a_device_never_reads_the_servers_path(tmp_path: Path) -> None:
    keys: dict[str, object] = {"data.name": "folder", "data.path": str(tmp_path)}
    reply = answer(keys, {"client-id": "a", "state-dir": str(tmp_path)})
    assert "data.path" in str(reply.content.config_records[wire.NOTE]["refused"])
    weights: dict[str, object] = {"model.weights": str(tmp_path / "theirs"), "data.clients": 2}
    own: dict[str, str | int] = {"client-id": "000", "state-dir": str(tmp_path)}
    assert "refused" not in answer(weights, own).content.config_records[wire.NOTE]
    reply = answer(weights | {"model.weights-sha256": "1"}, own | {"model.weights": "mine"})
    refused = str(reply.content.config_records[wire.NOTE]["refused"])
    assert refused == "model.weights 'mine' cannot be read: No such file or directory."


@pytest.mark.parametrize(
    ("values", "key", "name"),
    [
        ({"scheme": "./mine.py:Mine"}, "scheme", "./mine.py:Mine"),
        ({"pipeline": "fedavg:2 pack.mine:Mine:3"}, "scheme", "pack.mine:Mine"),
        ({"scheme": "installed"}, "scheme", "installed"),  # a package's, by its entry point
        ({"scheme": "apfl", "model.name": "pack.nets:Net"}, "model.name", "pack.nets:Net"),
    ],
)
def test_a_device_loads_no_code_its_owner_did_not_allow(
    values: dict[str, object], key: str, name: str
) -> None:
    config = {"client-id": "north", "state-dir": "state"}
    own, trusting = device(config), device(config | {"allow": f"other:Part, {name}"})
    assert own is not None
    assert trusting is not None
    with pytest.raises(BadInput, match=rf"^{key} '{name}' is not allowed .*north.*--allow {name}"):
        own.refuse_strangers(values)
    trusting.refuse_strangers(values)
    own.refuse_strangers({"scheme": "apfl", "pipeline": "fedavg:2 finetune:1", "model.name": "mlp"})


def test_what_is_not_allowed_is_refused_before_it_is_imported(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    own = device({"client-id": "north", "state-dir": str(tmp_path)})
    content = RecordDict({wire.SETTINGS: ConfigRecord({"scheme": f"{trap}:Mine"})})
    with pytest.raises(BadInput, match="is not allowed on the device"):
        read_order(Message(content, 1, "train"), own)
    assert not (tmp_path / "sprung").exists()


HOME = "/home/anna maria/photos"
OWNED = Device(("a",), Path("/srv/device"), f"{HOME}/shops", weights="/srv/start.safetensors")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{HOME}/shops/a/sales.npz is damaged.", "data.path/a/sales.npz is damaged."),
        (f"{HOME}/shopsold/x.npz", "/x.npz"),
        ("/srv/device/runs/1/a.safetensors", "state-dir/runs/1/a.safetensors"),
        ("/srv/start.safetensors: no such file", "model.weights: no such file"),
        (f"[Errno 2] No such file or directory: '{HOME}/x y.npz'", "/x y.npz'"),
        ('File "/usr/lib/python3/site.py", line 3', 'File "site.py", line 3'),
        (r"cannot open C:\Users\anna\x.npz.", "cannot open x.npz."),
        ("(/opt/anna/x.csv)", "(x.csv)"),
        ("w/weight and w/bias must be 1/2 of https://example.org/a/b", None),
    ],
)
def test_a_sentence_for_the_server_names_files_by_what_they_are(
    said: str, told: str | None
) -> None:
    found = OWNED.discreet(said)
    assert found == said if told is None else found.endswith(told)
    assert "anna/" not in found
    assert "photos" not in found


@pytest.mark.parametrize("kind", [MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE])
@pytest.mark.parametrize("error", [BadInput, OSError, RuntimeError])
def test_no_path_of_the_device_is_in_what_it_answers_when_something_goes_wrong(
    tmp_path: Path, kind: str, error: type[Exception]
) -> None:
    secret = f"{HOME}/diary.npz"

    def broken(message: Message, context: Context) -> Any:
        raise error(f"{secret} and {tmp_path}/x are not there, {tmp_path}.")

    broken_app = answering(broken, ClientApp())
    config: dict[str, Any] = {"client-id": "a", "state-dir": str(tmp_path)}
    config["data.path"] = f"{HOME}/shops"
    context = Context(1, 1, config, RecordDict(), {})
    order = message(parse({"scheme": "fedavg"}), 1, kind, 1, {}, ConfigRecord())
    try:
        reply = str(broken_app(order, context).content)
        assert (kind, error) == (MessageType.QUERY, BadInput)
    except Exception as why:  # Flower sends these words
        reply = str(why)
    assert "diary.npz" in reply
    assert "state-dir/x" in reply
    assert "anna" not in reply
    assert "photos" not in reply
    assert str(tmp_path) not in reply


def test_a_reason_that_is_long_is_cut_before_it_is_sent() -> None:
    assert len(OWNED.discreet("x" * 10**6)) < 600
