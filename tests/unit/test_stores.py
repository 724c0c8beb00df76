"""Where personal state lives: every store keeps the same promises."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from flwr.app import RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bouquet.client_app import stores
from bouquet.client_app.stores import (
    ContextStore,
    DiskStore,
    MemoryStore,
    Mirrored,
    Store,
    read_state,
)
from bouquet.storage import atomic as storage
from bouquet.storage.files import BadFile, seal
from bouquet.storage.state import BadState, Identity, PersonalState

OWN = Identity(scheme="apfl", version=1, fingerprint="shape", client="007")
Reopen = Callable[[], Store]


def opener(kind: str, folder: Path) -> Reopen:
    """Opens a store, as a new process would where the store survives one."""
    memory, records = MemoryStore(), RecordDict()
    kinds: dict[str, Reopen] = {
        "memory": lambda: memory,
        "context": lambda: ContextStore(records, "run"),
        "disk": lambda: DiskStore(folder),
        "memory and disk": lambda: Mirrored(MemoryStore(), DiskStore(folder)),
        "context and disk": lambda: Mirrored(ContextStore(RecordDict(), "run"), DiskStore(folder)),
    }
    return kinds[kind]


DURABLE = ["disk", "memory and disk", "context and disk"]
every_store = pytest.mark.parametrize("kind", ["memory", "context", *DURABLE])
durable_stores = pytest.mark.parametrize("kind", DURABLE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where stores write: two levels down, so that a way out would be seen."""
    return tmp_path / "outer" / "states"


@pytest.fixture
def reopen(kind: str, folder: Path) -> Reopen:
    return opener(kind, folder)


@pytest.fixture
def store(reopen: Reopen) -> Store:
    return reopen()


def state(round_: int, identity: Identity = OWN, value: float | None = None) -> PersonalState:
    """A state that tells which round left it."""
    number = float(round_) if value is None else value
    weights = torch.full((2, 3), number).mT.contiguous().mT  # laid out column by column
    return PersonalState(identity, round_, {"v/w": weights, "alpha": torch.tensor(number)})


def loaded(store: Store, before: int, identity: Identity = OWN) -> float | None:
    """The number a round left, or None."""
    found = store.load(identity, before)
    return None if found is None else found.tensors["alpha"].item()


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and what is in it."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# Every store


@every_store
def test_a_client_that_never_took_part_has_no_state(store: Store) -> None:
    assert store.load(OWN, before=5) is None


@every_store
def test_state_comes_back_as_it_was(store: Store) -> None:
    saved = state(3)
    store.save(saved)
    found = store.load(OWN, before=4)
    assert found is not None
    assert (found.identity, found.round) == (OWN, 3)
    assert found.tensors.keys() == saved.tensors.keys()
    for name, value in found.tensors.items():
        assert value.dtype == saved.tensors[name].dtype
        assert torch.equal(value, saved.tensors[name])


@every_store
def test_a_round_delivered_again_finds_what_it_found_the_first_time(store: Store) -> None:
    for round_ in (2, 5, 6):
        first = loaded(store, before=round_)
        store.save(state(round_))
        assert loaded(store, before=round_) == first
        store.save(state(round_))
        assert loaded(store, before=round_) == first


@every_store
def test_a_round_done_again_replaces_what_it_left(store: Store) -> None:
    store.save(state(1))
    store.save(state(2, value=20.0))
    store.save(state(2, value=21.0))
    assert loaded(store, before=3) == 21.0
    assert loaded(store, before=2) == 1.0


@every_store
def test_a_round_done_again_drops_what_later_rounds_left(store: Store) -> None:
    """A run that goes on from an earlier checkpoint: round 3 is done, then 2 again."""
    store.save(state(1))
    store.save(state(3))
    store.save(state(2))
    assert loaded(store, before=9) == 2.0
    assert loaded(store, before=2) == 1.0


@every_store
def test_only_two_generations_are_kept_and_what_is_gone_is_not_made_up(store: Store) -> None:
    for round_ in (1, 2, 3):
        store.save(state(round_))
    assert loaded(store, before=4) == 3.0
    assert loaded(store, before=3) == 2.0
    with pytest.raises(BadState, match=r"007 holds personal state of round 3 and none from before"):
        store.load(OWN, before=2)


@every_store
def test_state_newer_than_the_round_is_refused_not_started_over(store: Store) -> None:
    store.save(state(4))
    with pytest.raises(BadState, match="round 4 and none from before round 2"):
        store.load(OWN, before=2)
    assert loaded(store, before=5) == 4.0


@every_store
def test_clients_do_not_see_each_others_state(store: Store) -> None:
    other = replace(OWN, client="008")
    store.save(state(1))
    assert store.load(other, before=2) is None
    store.save(state(1, other, value=8.0))
    assert loaded(store, 2) == 1.0
    assert loaded(store, 2, other) == 8.0


@every_store
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (replace(OWN, scheme="ditto"), "of scheme 'apfl', not 'ditto'"),
        (replace(OWN, version=2), "of version 1, not 2"),
        (replace(OWN, fingerprint="other"), "of model fingerprint 'shape', not 'other'"),
    ],
)
def test_state_that_belongs_to_something_else_is_refused_by_name_and_kept(
    reopen: Reopen, folder: Path, wanted: Identity, said: str
) -> None:
    store = reopen()
    store.save(state(1))
    before = files(folder)
    for opened in (store, reopen()):
        with pytest.raises(BadState, match=f"007.*{said}"):
            opened.load(wanted, before=2)
    assert files(folder) == before
    assert loaded(store, before=2) == 1.0


@every_store
@pytest.mark.parametrize("client", ["../../etc", "..", "/", "a/b", "a b", "ä%2F", "x" * 80])
def test_a_client_may_be_called_anything(
    store: Store, folder: Path, tmp_path: Path, client: str
) -> None:
    identity = replace(OWN, client=client)
    store.save(state(1, identity))
    store.save(state(2, identity))
    assert loaded(store, 3, identity) == 2.0
    assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} <= {folder}


@every_store
@pytest.mark.parametrize(
    ("one", "other"), [("a", "a.previous"), ("a/b", "a%2Fb"), ("a", "A"), ("a", "a.safetensors")]
)
def test_two_clients_never_share_a_place(store: Store, one: str, other: str) -> None:
    for round_ in (1, 2):
        for client, value in ((one, 10.0), (other, 20.0)):
            store.save(state(round_, replace(OWN, client=client), value + round_))
    for client, value in ((one, 10.0), (other, 20.0)):
        identity = replace(OWN, client=client)
        assert loaded(store, 2, identity) == value + 1
        assert loaded(store, 3, identity) == value + 2


def test_runs_that_share_a_context_do_not_see_each_others_state() -> None:
    records = RecordDict()
    ContextStore(records, "one").save(state(1))
    assert ContextStore(records, "other").load(OWN, before=2) is None


visits = st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=8)


@settings(deadline=None, max_examples=30)
@given(visits)
@example([(1, False), (3, True), (2, False)])
@every_store
def test_every_store_does_what_two_generations_in_a_list_would(
    kind: str, visits: list[tuple[int, bool]]
) -> None:
    """Rounds come in any order, some after a restart; each loads, then saves what it made."""
    with tempfile.TemporaryDirectory() as folder:
        reopen = opener(kind, Path(folder))
        store, kept = reopen(), list[int]()  # newest first
        for value, (round_, restart) in enumerate(visits):
            store = reopen() if restart else store
            older = [one for one in kept if one < round_]
            if kept and not older and kept[0] > round_:
                with pytest.raises(BadState):
                    store.load(OWN, round_)
                continue
            found = store.load(OWN, round_)
            assert (found and found.round) == (older[0] if older else None)
            store.save(state(round_, value=float(value)))
            kept = [round_, *older[:1]]
            assert loaded(store, round_ + 1) == value


# Stores that survive


@durable_stores
def test_a_new_process_finds_both_generations(reopen: Reopen) -> None:
    store = reopen()
    store.save(state(1))
    store.save(state(2))
    assert loaded(reopen(), before=3) == 2.0
    assert loaded(reopen(), before=2) == 1.0


@durable_stores
def test_a_new_process_still_keeps_two_generations(reopen: Reopen) -> None:
    for round_ in (1, 2, 3):
        reopen().save(state(round_))
    assert loaded(reopen(), before=4) == 3.0
    assert loaded(reopen(), before=3) == 2.0


@durable_stores
def test_the_state_of_another_client_under_this_ones_name_is_refused_and_kept(
    reopen: Reopen, folder: Path
) -> None:
    reopen().save(state(1, replace(OWN, client="008")))
    (folder / "008.safetensors").rename(folder / "007.safetensors")
    before = files(folder)
    with pytest.raises(BadState, match=r"007\.safetensors .*of client '008', not '007'"):
        reopen().load(OWN, before=2)
    with pytest.raises(BadState, match=r"007\.safetensors .*of client '008', not '007'"):
        reopen().save(state(2))
    assert files(folder) == before


@durable_stores
@pytest.mark.parametrize("damage", ["cut short", "a bit turned over", "emptied", "something else"])
def test_a_damaged_file_is_refused_by_name_and_never_replaced(
    reopen: Reopen, folder: Path, damage: str
) -> None:
    reopen().save(state(1))
    reopen().save(state(2))
    path = folder / "007.safetensors"
    path.write_bytes(damaged(path.read_bytes(), damage))
    before = files(folder)
    with pytest.raises(BadFile, match=r"007\.safetensors"):
        reopen().load(OWN, before=3)
    with pytest.raises(BadFile, match=r"007\.safetensors"):
        reopen().save(state(3))
    assert files(folder) == before


@pytest.mark.parametrize("header", [{}, {"round": "x", "version": "1"}])
def test_a_whole_file_without_a_proper_header_is_refused(
    folder: Path, header: dict[str, str]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "x.safetensors").write_bytes(seal(stores.FORMAT, header, {"v": torch.ones(2)}))
    with pytest.raises(BadState, match=r"x\.safetensors is damaged"):
        read_state(folder / "x.safetensors")


def test_a_damaged_older_generation_is_never_replaced_either(folder: Path) -> None:
    for round_ in (1, 2):
        DiskStore(folder).save(state(round_))
    path = folder / "007.previous.safetensors"
    path.write_bytes(content := damaged(path.read_bytes(), "cut short"))
    with pytest.raises(BadFile, match=r"007\.previous\.safetensors"):
        DiskStore(folder).load(OWN, before=2)
    with suppress(BadFile):
        DiskStore(folder).save(state(3))
    assert content in files(folder).values()


def test_a_device_may_go_on_from_the_generation_before_a_damaged_one(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(folder)
    store.save(state(1))
    store.save(state(2))
    path = folder / "007.safetensors"
    path.write_bytes(content := damaged(path.read_bytes(), "cut short"))
    recovering = DiskStore(folder, recover=True)
    assert loaded(recovering, before=3) == 1
    assert "007 goes on from what it had after round 1" in caplog.text
    assert (folder / "007.safetensors.damaged").read_bytes() == content
    recovering.save(state(3))
    again = DiskStore(folder)
    assert loaded(again, before=4) == 3
    assert loaded(again, before=3) == 1


def test_where_both_generations_are_damaged_nothing_is_moved(folder: Path) -> None:
    store = DiskStore(folder)
    store.save(state(1))
    store.save(state(2))
    for name in ("007.safetensors", "007.previous.safetensors"):
        path = folder / name
        path.write_bytes(damaged(path.read_bytes(), "cut short"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(BadFile, match=r"007\.previous\.safetensors is damaged"):
        DiskStore(folder, recover=True).load(OWN, before=3)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def damaged(content: bytes, damage: str) -> bytes:
    return {
        "cut short": content[:-1],
        "a bit turned over": content[:-1] + bytes([content[-1] ^ 1]),
        "emptied": b"",
        "something else": b"my diary",
    }[damage]


def test_a_file_says_whose_it_is(folder: Path) -> None:
    DiskStore(folder).save(state(3))
    assert read_state(folder / "007.safetensors").identity == OWN
    assert read_state(folder / "007.safetensors").round == 3


# Faults


@durable_stores
def test_a_full_disk_loses_nothing(
    reopen: Reopen, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = reopen()
    store.save(state(1))
    store.save(state(2))
    before = files(folder)

    def no_space(file: int) -> NoReturn:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space left"):
            store.save(state(3))
    assert files(folder) == before
    assert loaded(store, before=4) == 2.0  # memory has not run ahead of the disk


def test_states_are_saved_all_or_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full before the third of them is written."""
    clients = [replace(OWN, client=name) for name in ("a", "b", "c")]
    store = DiskStore(folder)
    store.save(*(state(1, client, value=1.0) for client in clients))
    written: list[Path] = []
    aside = storage.write_aside

    def full(*words: Any, **more: Any) -> Path:
        if len(written) == 2:
            raise OSError("No space left on device")
        written.append(aside(*words, **more))
        return written[-1]

    with monkeypatch.context() as patch:
        patch.setattr(stores, "write_aside", full)
        with pytest.raises(OSError, match="No space"):
            store.save(*(state(2, client, value=2.0) for client in clients))
    assert sorted(path.name for path in folder.iterdir()) == [f"{n}.safetensors" for n in "abc"]
    for client in clients:
        found = DiskStore(folder).load(client, before=3)
        assert found is not None
        assert found.round == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_files_are_on_disk_before_they_take_the_place_of_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Whether the system can do so for many at once, or for one after the other."""
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        done.append(f"synced {os.readlink(f'/proc/self/fd/{descriptor}')}")
        fsync(descriptor)

    def at_once_or_not(file: Path) -> bool:
        done.append("synced all")
        return at_once

    def put(old: Path, new: Path) -> None:
        done.append("renamed")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", put)
    monkeypatch.setattr(storage, "_settled_at_once", at_once_or_not)
    DiskStore(folder).save(*(state(1, replace(OWN, client=name)) for name in "ab"))
    kinds = [one.partition("/")[0].strip() for one in done]
    each = [] if at_once else ["synced"] * 2
    assert kinds == ["synced all", *each, "renamed", "renamed", "synced"]
    assert done[-1] == f"synced {folder}"


def test_a_crash_between_the_two_renames_starts_the_round_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(folder)
    for round_ in (1, 2):
        store.save(state(round_))

    rename = os.replace

    def crash(old: Path, new: Path) -> None:
        if old.suffix == ".tmp":
            raise KeyboardInterrupt
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            store.save(state(3))
    assert not (folder / "007.safetensors").exists()  # it did crash in between
    again = DiskStore(folder)
    assert loaded(again, before=3) == 2.0
    again.save(state(3))
    assert loaded(DiskStore(folder), before=4) == 3.0
    assert loaded(DiskStore(folder), before=3) == 2.0
