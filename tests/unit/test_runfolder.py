"""A run's folder: what is in it, and when a run may go on from it."""

import csv
import json
import tomllib
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as checked
from hypothesis import strategies as st

from server_app.runfolder import RunFolder, new_folder, read_toml, resumed
from strategies.core.config import Key, flatten
from strategies.core.errors import BadInput
from strategies.core.files import BadFile
from strategies.core.trees import sha256
from strategies.settings import all_keys, parse

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
    folder.write_config(parse(KEYS))
    folder.write_checkpoint(6, "apfl", SERVER)
    return folder


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
    folder.write_config(settings)
    tables = tomllib.loads((folder.path / "config.toml").read_text())
    assert flatten(tables).keys() == {one.name for one in all_keys()}
    assert tables["data"]["clients"] == 7
    assert folder.read_config() == settings


numbers = st.floats(0, exclude_min=True, allow_infinity=False)


@checked(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=("Cs",))), numbers, st.integers(0, 2**63 - 1))
def test_any_text_and_any_number_survive_the_config_file(
    folder: RunFolder, path: str, lr: float, seed: int
) -> None:
    settings = parse({"data.path": path, "lr": lr, "seed": seed})
    folder.write_config(settings)
    assert folder.read_config() == settings


def test_a_checkpoint_comes_back_to_the_last_bit(stopped: RunFolder) -> None:
    saved = stopped.read_checkpoint()
    assert (saved.round, saved.stage, saved.scheme) == (6, 1, "apfl")
    assert sha256(saved.server) == sha256(SERVER)


def test_a_round_adds_a_line_to_the_log(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS))
    events = [{"round": round_, "metrics": {"loss": 1 / round_}} for round_ in (1, 2, 3)]
    for event in events:
        folder.append_event(event)
    lines = (folder.path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == events
    assert folder.read_events(last=9) == events
    assert folder.read_events(last=2) == events[:2]


def test_a_line_cut_short_by_a_crash_is_left_out_wherever_it_was_cut(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS))
    folder.append_event({"round": 1})
    folder.append_event({"round": 2, "metrics": {"loss": 1.5}})
    log = folder.path / "events.jsonl"
    whole = log.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole) - 1):
        log.write_bytes(whole[:length])
        assert folder.read_events(last=9) == [{"round": 1}]


def test_the_log_goes_on_cleanly_after_a_line_cut_short(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS))
    folder.append_event({"round": 1})
    with open(folder.path / "events.jsonl", "a") as file:
        file.write('{"round": 2, "met')
    folder.rewrite_events(folder.read_events(last=9))
    folder.append_event({"round": 2})
    assert folder.read_events(last=9) == [{"round": 1}, {"round": 2}]


def test_a_log_that_is_not_there_yet_is_empty(folder: RunFolder) -> None:
    assert folder.read_events(last=9) == []


def test_numbers_that_are_not_finite_leave_the_files_valid_json(folder: RunFolder) -> None:
    """JSON has no NaN and no infinity: other languages' readers stop at them."""
    folder.write_config(parse(KEYS))
    event = {"round": 1, "metrics": {"loss": torch.nan, "other": torch.inf}}
    folder.append_event(event)
    folder.write_summary(event)

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is not JSON")

    for name in ("events.jsonl", "summary.json"):
        json.loads((folder.path / name).read_text(), parse_constant=refuse)


def test_the_table_of_clients_has_every_column_any_client_has(folder: RunFolder) -> None:
    folder.write_config(parse(KEYS))
    rows: list[dict[str, Any]] = [{"client": "a, b", "loss": 0.1}, {"client": "c", "alpha": 0.5}]
    folder.write_clients(rows)
    with open(folder.path / "clients.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"client": "a, b", "loss": "0.1", "alpha": ""},
            {"client": "c", "loss": "", "alpha": "0.5"},
        ]


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
        chosen[-1].write_config(settings)
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


@pytest.mark.parametrize(
    "key",
    [one for one in all_keys() if one.name not in ("rounds", "pipeline", "stage-keys")],
    ids=lambda key: key.name,
)
def test_any_other_changed_key_is_refused_by_name(stopped: RunFolder, key: Key) -> None:
    old = parse(KEYS).flat()[key.name]
    candidates = key.choices or OTHER.get(key.kind, ["something else"])
    new = next(value for value in candidates if value != old and not is_below(value, key))
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
    folder.write_config(parse(KEYS))
    assert f"{folder.path} holds no checkpoint" in refusal(folder)


def test_a_truncated_checkpoint_is_refused_by_name(stopped: RunFolder) -> None:
    content = stopped.checkpoint.read_bytes()
    for length in range(0, len(content), 20):
        stopped.checkpoint.write_bytes(content[:length])
        assert f"{stopped.checkpoint} is damaged" in refusal(stopped)


def test_a_file_of_another_kind_is_no_checkpoint(stopped: RunFolder) -> None:
    from client_app.stores import DiskStore
    from strategies.core.state import Identity, PersonalState

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
