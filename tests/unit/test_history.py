"""Every client's numbers over the rounds: what a run writes, and what stays on a device."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from bouquet.client_app.main import _leave_diagnostics
from bouquet.client_app.node import Result
from bouquet.client_app.orders import read_order
from bouquet.server_app.membership import message
from bouquet.server_app.summary import history_line
from bouquet.settings import parse
from bouquet.storage.runfolder import RunFolder
from tests.conftest import Quadratics, Run

Start = Callable[..., Run]
KEYS: dict[str, Any] = {
    "rounds": 4,
    "eval_every": 2,
    "clients_per_round": 2,
    "local_steps": 2,
    "data": {"clients": 4},
    "nodes": 2,
    "model": {"name": "linear"},
}
OWN = ("alpha", "personal_norm", "drift")
SCORES = ("shared_accuracy", "shared_loss", "personal_accuracy", "personal_loss")


def lines(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]


# What a run writes


def test_a_line_has_every_client_of_a_full_evaluation(start: Start) -> None:
    run = start(scheme="apfl", **KEYS)
    found = lines(run)
    assert [line["round"] for line in found] == [2, 4]
    assert [event["metrics"] for event in run.events[::2]] == [{}, {}]
    assert [event["evaluated"] for event in run.events] == [0, 4, 0, 4]
    for line, event in zip(found, run.events[1::2], strict=True):
        assert line["version"] == 1
        assert line["clients"] == ["000", "001", "002", "003"]
        assert len(line["clients"]) == event["evaluated"]
        for name in (*SCORES, *OWN):
            assert len(line[name]) == len(line["clients"])
        for name in SCORES:  # the same clients' numbers as the means are of
            mean = sum(line[name]) / len(line[name])
            assert mean == pytest.approx(event["metrics"][name], rel=1e-5)


def test_the_last_line_agrees_with_the_table_of_clients(start: Start) -> None:
    run = start(scheme="apfl", **KEYS)
    last = lines(run)[-1]
    for place, row in enumerate(run.clients):
        assert last["clients"][place] == row["client"]
        for name in (*SCORES, *OWN):
            assert last[name][place] == pytest.approx(float(row[name]), rel=1e-5)


def test_numbers_about_personal_states_are_those_of_the_round(
    start: Start, quadratics: Quadratics
) -> None:
    """As a run that ends with that round has them in its table."""
    keys: dict[str, Any] = {"scheme": "ditto", "eval_every": 1, **quadratics.keys}
    whole = lines(start(rounds=3, **keys))
    for rounds in (1, 2):
        table = start(rounds=rounds, **keys).clients
        for name in ("personal_norm", "drift"):
            told = [float(row[name]) for row in table]
            assert whole[rounds - 1][name] == pytest.approx(told, rel=1e-5)


@pytest.mark.parametrize(
    ("scheme", "own"),
    [
        ("fedavg", ()),
        ("apfl", ("alpha", "personal_norm", "drift")),
        ("plsgd", ("personal_norm", "drift")),
        ("fedsim", ("personal_norm",)),
        ("mocha", ("personal_norm",)),
    ],
)
def test_a_line_has_only_the_columns_the_scheme_has(
    start: Start, scheme: str, own: tuple[str, ...]
) -> None:
    keys = KEYS | {"rounds": 1, "clients_per_round": 0}
    (line,) = lines(start(scheme=scheme, **keys))
    assert [name for name in line if name in OWN] == list(own)
    assert set(line) == {"version", "round", "clients", *SCORES, *own}


def test_quadratic_problems_have_no_accuracy(start: Start, quadratics: Quadratics) -> None:
    (line,) = lines(start(scheme="fedavg", rounds=1, **quadratics.keys))
    assert "shared_loss" in line
    assert "shared_accuracy" not in line


def test_numbers_are_short_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    scores = {
        "b": {"shared_loss": math.inf, "personal_loss": 1 / 3},
        "a": {"shared_loss": math.nan, "personal_loss": 2e7 / 3},
    }
    RunFolder(tmp_path).append_history(history_line(7, scores, {}))
    assert (tmp_path / "history.jsonl").read_text() == (
        '{"version":1,"round":7,"clients":["a","b"],"shared_loss":[null,null],'
        '"personal_loss":[6666670.0,0.333333]}\n'
    )


def test_a_run_without_evaluation_has_a_line_for_its_end(start: Start) -> None:
    assert [line["round"] for line in lines(start(scheme="apfl", **KEYS | {"eval_every": 0}))] == [
        4
    ]


def test_the_table_tells_of_clients_that_never_trained_and_of_no_newcomers(start: Start) -> None:
    """A client that comes after training keeps nothing yet."""
    keys = KEYS | {"rounds": 1, "clients_per_round": 1, "join": {"clients": 1}}
    rows = start(scheme="apfl", **keys).clients
    assert [row["joined"] for row in rows] == ["0", "0", "0", "2"]
    assert all(float(row["personal_norm"]) > 0 for row in rows[:3])
    assert [rows[3][name] for name in OWN] == ["", "", ""]


@pytest.mark.parametrize("scheme", ["apfl", "fedalt", "local", "scaffold"])
def test_the_table_tells_of_the_states_in_the_folder(start: Start, scheme: str) -> None:
    run = start(scheme=scheme, **KEYS | {"clients_per_round": 0})
    field = {"apfl": "v", "fedalt": "v", "local": "w", "scaffold": "c"}[scheme]
    for row in run.clients:
        own = run.personal(row["client"])
        squares = [
            np.sum(v.astype(float) ** 2) for k, v in own.items() if k.startswith(f"{field}/")
        ]
        assert float(row["personal_norm"]) == pytest.approx(math.sqrt(sum(squares)), rel=1e-12)


def test_resuming_a_run_that_has_ended_writes_the_same_table(start: Start) -> None:
    whole = start(scheme="apfl", **KEYS)
    before = whole.clients
    assert start(scheme="apfl", folder=whole.path, resume=True, **KEYS).clients == before


def test_nothing_is_left_of_what_nodes_told_once_the_run_has_ended(start: Start) -> None:
    assert not (start(scheme="apfl", **KEYS).path / "diagnostics").exists()


# Going on


def test_a_resumed_run_has_the_history_of_one_never_stopped(start: Start, tmp_path: Path) -> None:
    whole = start(scheme="apfl", **KEYS)
    half = start(scheme="apfl", **KEYS | {"rounds": 2})
    with open(half.path / "history.jsonl", "a") as file:  # rounds that a crash made undone
        file.write(json.dumps(lines(half)[-1] | {"round": 3}) + '\n{"round": 4, "clie')
    resumed = start(scheme="apfl", folder=half.path, resume=True, **KEYS)
    assert lines(resumed) == lines(whole)


def test_a_run_from_before_there_was_a_history_goes_on(start: Start) -> None:
    half = start(scheme="apfl", **KEYS | {"rounds": 2})
    (half.path / "history.jsonl").unlink()
    resumed = start(scheme="apfl", folder=half.path, resume=True, **KEYS)
    assert [line["round"] for line in lines(resumed)] == [4]


def test_cutting_leaves_the_lines_before_as_they_are(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for round_ in (1, 2, 3):
        folder.append_history({"round": round_, "clients": ["ä"], "alpha": [0.25 * round_]})
    before = (tmp_path / "history.jsonl").read_text().splitlines()
    folder.cut_history(2)
    assert (tmp_path / "history.jsonl").read_text().splitlines() == before[:2]
    folder.cut_history(0)
    assert (tmp_path / "history.jsonl").read_text() == ""


# What stays on a device


def told(tmp_path: Path, **node_config: str | int) -> list[Path]:
    """What a node writes whose server asks for numbers about personal states."""
    words: dict[str, Any] = {"round": 1, "clients": ["a"], "weights": [1.0], "state-dir": ""}
    note = ConfigRecord(words | {"diagnostics-dir": str(tmp_path / "numbers")})
    order = read_order(message(parse({}), 2, "train", 1, {}, note))
    context = Context(1, 2, dict(node_config), RecordDict(), {})
    result = Result(clients=["a"], diagnostics={"alpha": [0.5]})
    _leave_diagnostics(result, order, context)
    return list((tmp_path / "numbers").glob("*"))


def test_a_device_writes_no_numbers_about_personal_states_wherever_it_is_told_to(
    tmp_path: Path,
) -> None:
    device = {"client-id": "a", "state-dir": str(tmp_path / "device")}
    assert told(tmp_path, **device) == []
    assert [path.name for path in told(tmp_path, **{"partition-id": 3})] == ["3.json"]


def test_numbers_of_another_round_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.diagnostics.mkdir()
    for place, round_ in enumerate((3, 4)):
        numbers = {"round": round_, "clients": [f"c{place}"], "alpha": [0.5]}
        (folder.diagnostics / f"{place}.json").write_text(json.dumps(numbers))
    assert folder.read_diagnostics(4) == {"c1": {"alpha": 0.5}}


# Which node answered


def test_the_log_says_who_lives_where_and_who_answered(start: Start) -> None:
    first, *others = start(scheme="apfl", **KEYS).events
    assert {node: host["clients"] for node, host in first["hosts"].items()} == {
        "0": ["000", "002"],
        "1": ["001", "003"],
    }
    assert all("hosts" not in event for event in others)  # nobody has moved
    for event in (first, *others):
        asked = {str(turn % 2) for turn, _ in enumerate(event["clients"])}  # dealt out in turn
        assert set(event["nodes"]) == (asked if event["round"] % 2 else {"0", "1"})
        assert all(seconds > 0 for seconds in event["nodes"].values())
    assert [one["time"] for one in others] == sorted(one["time"] for one in others)


def test_a_resumed_run_says_again_who_lives_where(start: Start) -> None:
    half = start(scheme="apfl", **KEYS | {"rounds": 2})
    resumed = start(scheme="apfl", folder=half.path, resume=True, **KEYS)
    assert [event["round"] for event in resumed.events if "hosts" in event] == [1, 3]
