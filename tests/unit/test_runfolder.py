"""A run's folder: what is in it, and when a run may go on from it."""

import csv
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as checked
from hypothesis import strategies as st

from bouquet.continuing import new_folder, resumed, settings_of
from bouquet.core.config import LARGEST, Key, flatten
from bouquet.core.errors import BadInput
from bouquet.core.trees import sha256
from bouquet.settings import all_keys, parse
from bouquet.storage.events import Event
from bouquet.storage.files import BadFile
from bouquet.storage.runfolder import RunFolder, read_toml
from tests.conftest import Run

SERVER = {"w/x": torch.arange(6.0).reshape(2, 3)}
KEYS: dict[str, object] = {"scheme": "apfl", "rounds": 10, "lr": 0.05, "data.clients": 7}
# A value that differs from the run's own, for every key but rounds.
OTHER: dict[type, list[object]] = {bool: [True, False], int: [2, 3], float: [0.25, 0.75, 5.0]}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def stopped(folder: RunFolder) -> RunFolder:
    """A run of ten rounds that was stopped after the sixth."""
    folder.write_config(parse(KEYS).flat())
    folder.write_checkpoint(6, "apfl", SERVER)
    return folder


def event(round_: int) -> Event:
    """A round's line as a run writes it, with a metric that is null where it is not finite."""
    return {
        "version": 1,
        "round": round_,
        "stage": "apfl",
        "seconds": 0.5,
        "timing": {"training": 0.25},
        "nodes": {"0": 0.25, "1": None},
        "clients": ["a", "ü"],
        "failures": [{"client": "b", "reason": "no reply in time"}],
        "bytes_up": 10,
        "bytes_down": 20,
        "metrics": {"shared_loss": 1 / round_, "personal_loss": None},
    }


def history(round_: int) -> dict[str, Any]:
    """What two clients did in a round."""
    return {"version": 1, "round": round_, "clients": ["a", "ü"], "shared_loss": [0.5, None]}


def contents(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def refusal(folder: RunFolder, **changes: object) -> str:
    """Why a run cannot go on; nothing may change in its folder."""
    before = contents(folder.path)
    with pytest.raises(BadInput) as refused:
        resumed(folder, {name.replace("_", "-"): value for name, value in changes.items()})
    assert contents(folder.path) == before
    return str(refused.value)


# What is in it


def test_the_config_file_holds_every_key_and_reads_back_the_same(folder: RunFolder) -> None:
    settings = parse(KEYS | {"out": 'a "quoted"\nplace', "apfl.alpha": 1e-300})
    folder.write_config(settings.flat())
    tables = tomllib.loads((folder.path / "config.toml").read_text())
    assert flatten(tables).keys() == {one.name for one in all_keys()}
    assert tables["data"]["clients"] == 7
    assert settings_of(folder) == settings


numbers = st.floats(0, LARGEST, exclude_min=True)


@checked(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    numbers,
    st.integers(0, 2**63 - 1),
)
def test_any_text_and_any_number_survive_the_config_file(
    folder: RunFolder, path: str, lr: float, seed: int
) -> None:
    settings = parse({"data.path": path, "lr": lr, "seed": seed})
    folder.write_config(settings.flat())
    assert settings_of(folder) == settings


def test_a_checkpoint_comes_back_to_the_last_bit(stopped: RunFolder) -> None:
    saved = stopped.read_checkpoint()
    assert (saved.round, saved.stage, saved.scheme) == (6, 1, "apfl")
    assert sha256(saved.server) == sha256(SERVER)


def test_a_round_adds_a_line_to_the_log(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS).flat())
    events = [event(round_) for round_ in (1, 2, 3)]
    for one in events:
        folder.append_event(one)
    lines = (folder.path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == events
    assert folder.read_events(last=9) == events
    assert folder.read_events(last=2) == events[:2]


def test_a_line_cut_short_by_a_crash_is_left_out_wherever_it_was_cut(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS).flat())
    folder.append_event(event(1))
    folder.append_event(event(2))
    log = folder.path / "events.jsonl"
    whole = log.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole) - 1):
        log.write_bytes(whole[:length])
        assert folder.read_events(last=9) == [event(1)]


def test_the_log_goes_on_cleanly_after_a_line_cut_short(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS).flat())
    folder.append_event(event(1))
    with open(folder.path / "events.jsonl", "a") as file:
        file.write('{"round": 2, "met')
    folder.rewrite_events(folder.read_events(last=9))
    folder.append_event(event(2))
    assert folder.read_events(last=9) == [event(1), event(2)]


def test_a_log_that_is_not_there_yet_is_empty(folder: RunFolder) -> None:
    assert folder.read_events(last=9) == []


def test_numbers_that_are_not_finite_leave_the_files_valid_json(folder: RunFolder) -> None:
    """JSON has no NaN and no infinity: other languages' readers stop at them."""
    folder.write_config(parse(KEYS).flat())
    wild = event(1) | {"metrics": {"loss": torch.nan, "other": torch.inf}}
    folder.append_event(wild)
    folder.write_summary(wild)

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is not JSON")

    for name in ("events.jsonl", "summary.json"):
        json.loads((folder.path / name).read_text(), parse_constant=refuse)


def test_the_table_of_clients_has_every_column_any_client_has(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS).flat())
    rows: list[dict[str, Any]] = [{"client": "a, b", "loss": 0.1}, {"client": "c", "alpha": 0.5}]
    folder.write_clients(rows)
    with open(folder.path / "clients.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"client": "a, b", "loss": "0.1", "alpha": ""},
            {"client": "c", "loss": "", "alpha": "0.5"},
        ]


# Damaged ones

BROKEN: list[bytes] = [
    b"",
    b"\xff\xfe",
    b'{"round": 2',
    b"[]",
    b"null",
    b"{}",
    b'{"round": true}',
    b"[" * 100_000,
    b'{"round": ' + b"9" * 5000 + b"}",
]


def damaged(whole: Mapping[str, Any]) -> list[bytes]:
    """Lines that are broken, that lack a key or in which it is something else."""
    names = [name for name in whole if name not in ("version", "shared_loss")]
    lacking = [{k: v for k, v in whole.items() if k != name} for name in names]
    other = [{**whole, name: odd} for name in names for odd in ({"x": "y"}, [1], -1, "\0", None)]
    return [*BROKEN, *[json.dumps(one).encode() for one in (*lacking, *other)]]


@pytest.mark.parametrize("line", damaged(event(2)))
def test_a_damaged_line_of_a_finished_round_is_refused_and_the_rest_is_read(
    stopped: RunFolder, line: bytes
) -> None:
    whole = [json.dumps(event(round_)).encode() for round_ in range(1, 7)]
    whole[1] = line
    (stopped.path / "events.jsonl").write_bytes(b"\n".join(whole) + b"\n")
    assert [one["round"] for one in stopped.read_events(last=9)] == [1, 3, 4, 5, 6]
    assert "events.jsonl is damaged (it does not tell of round 2)" in refusal(stopped)
    (stopped.path / "events.jsonl").unlink()  # as the sentence says
    assert resumed(stopped, {}).run.rounds == 10


def test_what_a_crash_left_of_a_round_that_was_not_finished_does_no_harm(
    stopped: RunFolder,
) -> None:
    for round_ in range(1, 7):
        stopped.append_event(event(round_))
    with open(stopped.path / "events.jsonl", "ab") as file:
        file.write(json.dumps(event(7)).encode()[:-20] + b"\xff")
    assert resumed(stopped, {}).run.rounds == 10


@pytest.mark.parametrize("line", damaged(history(2)))
def test_a_damaged_line_of_the_history_is_left_out(folder: RunFolder, line: bytes) -> None:
    folder.write_config(parse(KEYS).flat())
    lines = [json.dumps(history(round_)).encode() for round_ in (1, 2, 3)]
    kept = b"".join(one + b"\n" for one in (lines[0], lines[2]))
    (folder.path / "history.jsonl").write_bytes(b"\n".join((lines[0], line, lines[2])) + b"\n")
    folder.cut_history(3)
    assert (folder.path / "history.jsonl").read_bytes() == kept


@pytest.mark.parametrize("line", damaged(history(2)))
def test_damaged_numbers_of_a_node_tell_nothing(folder: RunFolder, line: bytes) -> None:
    folder.diagnostics.mkdir(parents=True)
    (folder.diagnostics / "0.json").write_bytes(line)
    (folder.diagnostics / "1.json").write_text('{"round": 2, "clients": ["c"], "alpha": [0.5]}')
    assert folder.read_diagnostics(2) == {"c": {"alpha": 0.5}}


@pytest.mark.parametrize("name", [b"", b"\xff", b"../..", b"20260101-120000-0123456\n", b"x\n"])
def test_a_damaged_name_is_refused_for_devices_would_start_afresh(
    stopped: RunFolder, name: bytes
) -> None:
    (stopped.path / "server" / "name").write_bytes(name)
    assert "holds no run's name" in refusal(stopped)


def test_a_resumed_run_removes_what_a_killed_one_left_aside_and_nothing_else(
    stopped: RunFolder, tmp_path: Path
) -> None:
    gone = max(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()) + 10_000
    states, elsewhere = tmp_path / "states", tmp_path / "elsewhere"
    for place in (states / "stage2", elsewhere):
        place.mkdir(parents=True)
    ours = [
        stopped.path / f".config.toml.{gone}.tmp",
        stopped.path / "server" / f".checkpoint.safetensors.{os.getpid()}.tmp",
        states / f".003.safetensors.{gone}.tmp",
        states / "stage2" / f".003.safetensors.{gone}.tmp",
    ]
    others = [
        stopped.path / f".config.toml.{os.getppid()}.tmp",  # that process is alive
        stopped.path / "notes.tmp",
        stopped.path / ".notes.tmp",
        states / ".003.safetensors.x.tmp",
        elsewhere / f".003.safetensors.{gone}.tmp",
    ]
    for path in (*ours, *others):
        path.write_text("half")
    stopped.sweep(states)
    assert [path for path in (*ours, *others) if path.exists()] == others


def test_a_checkpoint_of_another_model_is_refused(start: Callable[..., Run]) -> None:
    """As when a damaged config.toml is still a config."""
    keys: dict[str, Any] = {"nodes": 1, "rounds": 1, "data": {"name": "synthetic", "clients": 2}}
    run = start(scheme="scaffold", **keys)
    other = keys | {"rounds": 2, "data": keys["data"] | {"features": 7}}
    kept = run.server()["w/output.bias"]
    with pytest.raises(BadFile, match="The checkpoint does not fit the run's model"):
        start(scheme="scaffold", folder=run.path, resume=True, **other)
    assert (run.server()["w/output.bias"] == kept).all()


# A new one


def test_a_new_folder_is_not_made_before_the_run_is_accepted(tmp_path: Path) -> None:
    chosen = new_folder(parse({"out": str(tmp_path / "deep" / "run")}))
    assert chosen.path == tmp_path / "deep" / "run"
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = parse({"scheme": "local"})
    chosen = []
    for _ in range(3):
        chosen.append(new_folder(settings))
        chosen[-1].write_config(settings.flat())
    assert len({one.path for one in chosen}) == 3
    assert all(one.path.parent == Path("runs") for one in chosen)
    assert all("-local-digits" in one.path.name for one in chosen)


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(stopped: RunFolder) -> None:
    before = contents(stopped.path)
    with pytest.raises(BadInput, match=r"^out: .*run already holds a run; .* --resume .*run\.$"):
        new_folder(parse({"out": str(stopped.path)}))
    assert contents(stopped.path) == before


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    assert new_folder(parse({"out": str(tmp_path)})).path == tmp_path


@pytest.mark.parametrize("place", ["file", "file/run", "file/deep/run"])
def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "file").chmod(0o700)  # though it could be written and run
    with pytest.raises(BadInput, match=r"^out: .*file.* cannot be written: .*file is no writable"):
        new_folder(parse({"out": str(tmp_path / place)}))
    assert contents(tmp_path) == {str(tmp_path / "file"): b"not a folder"}


def test_a_name_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^out: "):
        new_folder(parse({"out": str(tmp_path / ("x" * 300))}))


# Going on


def test_a_run_goes_on_with_its_own_settings(stopped: RunFolder) -> None:
    assert resumed(stopped, {}) == parse(KEYS)


@pytest.mark.parametrize("rounds", [6, 10, 500])
def test_rounds_may_be_raised_or_end_where_the_run_stopped(stopped: RunFolder, rounds: int) -> None:
    after = resumed(stopped, {"rounds": rounds})
    assert after == parse(KEYS | {"rounds": rounds})


def test_fewer_rounds_than_are_done_are_refused(stopped: RunFolder) -> None:
    assert refusal(stopped, rounds=5) == (
        "--resume: rounds must be at least 6, the rounds already done, not 5."
    )


# What these may be depends on other keys or on files, which is said first.
ELSEWHERE = {"pipeline", "stage-keys", "statistics", "validation-fold", "model.weights"}


@pytest.mark.parametrize(
    "key",
    [one for one in all_keys() if one.name not in {"rounds", "device"} | ELSEWHERE],
    ids=lambda key: key.name,
)
def test_any_other_changed_key_is_refused_by_name(stopped: RunFolder, key: Key) -> None:
    old = parse(KEYS).flat()[key.name]
    own = ("mine:part",) if key.own else ()
    candidates = (*key.choices, *own) or OTHER.get(key.kind, ["fedavg", "something else"])
    # What a key is by itself may be what it is already.
    other = [value for value in candidates if value not in (old, "auto")]
    new = next(value for value in other if not is_below(value, key))
    assert refusal(stopped, **{key.name: new}) == (
        f"--resume: {key.name} is {old!r} in {stopped.path} and cannot become {new!r}; "
        "only rounds may be raised."
    )


def is_below(value: object, key: Key) -> bool:
    return isinstance(value, float) and value < key.low


def test_a_key_given_again_as_it_was_is_no_change(stopped: RunFolder) -> None:
    assert resumed(stopped, {"lr": 0.05, "rounds": 12}) == parse(KEYS | {"rounds": 12})


def test_a_wrong_value_is_told_from_a_changed_one(stopped: RunFolder) -> None:
    assert refusal(stopped, lr=-1.0) == "lr must be a number above 0, not -1.0."


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_a_run_is_refused(folder: RunFolder, there: bool) -> None:
    if there:
        folder.path.mkdir()
    assert f"{folder.path} holds no run" in refusal(folder)


def test_a_run_without_a_checkpoint_is_refused(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS).flat())
    assert f"{folder.path} holds no checkpoint" in refusal(folder)


def test_a_truncated_checkpoint_is_refused_by_name(stopped: RunFolder) -> None:
    content = stopped.checkpoint.read_bytes()
    for length in range(0, len(content), 20):
        stopped.checkpoint.write_bytes(content[:length])
        assert f"{stopped.checkpoint} is damaged" in refusal(stopped)


def test_a_file_of_another_kind_is_no_checkpoint(stopped: RunFolder) -> None:
    from bouquet.client_app.stores import DiskStore
    from bouquet.storage.state import Identity, PersonalState

    state = PersonalState(Identity("apfl", 1, "shape", "000"), 6, SERVER)
    DiskStore(stopped.path / "state").save(state)
    stopped.checkpoint.write_bytes((stopped.path / "state/000.safetensors").read_bytes())
    with pytest.raises(BadFile, match=r"is bouquet-personal-1, not bouquet-checkpoint-1"):
        stopped.read_checkpoint()


def test_the_checkpoint_of_another_scheme_is_refused_by_name(stopped: RunFolder) -> None:
    stopped.write_checkpoint(6, "fedavg", SERVER)
    said = refusal(stopped)
    assert str(stopped.checkpoint) in said
    assert "fedavg" in said


def test_a_config_that_was_damaged_is_refused_by_name(stopped: RunFolder) -> None:
    (stopped.path / "config.toml").write_text("rounds = = 3")
    assert refusal(stopped).startswith(f"{stopped.path}/config.toml is not valid TOML: ")


# TOML files


@pytest.mark.parametrize("content", [b"lr = ", b"\xff\xfe", b"[a", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_refused_by_name_in_one_line(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "keys.toml"
    path.write_bytes(content)
    with pytest.raises(BadInput) as refused:
        read_toml(path)
    assert str(refused.value).startswith(f"{path} is not valid TOML: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["nowhere.toml", "."])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"cannot be read \(.+\)\.$"):
        read_toml(tmp_path / name)
