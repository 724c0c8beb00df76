"""Files for TensorBoard, read back by TensorBoard itself."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bouquet.storage.events import Event
from bouquet.watch.tensorboard import scalars, tensorboard
from tests.conftest import Run
from tests.unit.test_cli import SMALL, Bouquet, bouquet
from tests.unit.test_report import event, write_run

__all__ = ["bouquet"]  # the fixture
KEYS = {**SMALL, "rounds": "3", "eval-every": "1"}


def words(**more: str) -> list[str]:
    told = KEYS | {name.replace("_", "-"): value for name, value in more.items()}
    return [word for key, value in told.items() for word in ("-c", f"{key}={value}")]


def read_back(run: Path) -> EventAccumulator:
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"histograms": 0})
    found.Reload()
    return found


def course(found: EventAccumulator, tag: str) -> dict[int, float]:
    return {one.step: one.value for one in found.Scalars(tag)}


def test_every_round_is_there_as_in_the_log(bouquet: Bouquet, tmp_path: Path) -> None:
    outcome = bouquet("simulate", *words(scheme="apfl"), "--out", "run", "--tensorboard")
    assert outcome.code == 0, outcome.err
    run, found = Run(tmp_path / "run"), read_back(tmp_path / "run")
    for name, tag in {
        "shared_accuracy": "accuracy/shared",
        "personal_accuracy_p10": "accuracy/personal_p10",
        "personal_loss": "loss/personal",
    }.items():
        expected = {one["round"]: one["metrics"][name] for one in run.events}
        assert course(found, tag) == pytest.approx(expected)
    assert course(found, "round/clients") == {1: 3.0, 2: 3.0, 3: 3.0}
    bytes_up = {one["round"]: one["bytes_up"] for one in run.events}
    assert course(found, "round/bytes_up") == pytest.approx(bytes_up)


def test_what_is_personal_is_there_as_histograms(bouquet: Bouquet, tmp_path: Path) -> None:
    assert bouquet("simulate", *words(scheme="apfl"), "--out", "run", "--tensorboard").code == 0
    found = read_back(tmp_path / "run")
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    ]
    for name in ("alpha", "personal_norm", "drift"):
        drawn = found.Histograms(f"personal/{name}")
        assert [one.step for one in drawn] == [1, 2, 3]
        for one, line in zip(drawn, lines, strict=True):
            told = one.histogram_value
            assert (told.min, told.max) == pytest.approx((min(line[name]), max(line[name])))
            assert told.num == 3
        medians = {line["round"]: sorted(line[name])[1] for line in lines}
        assert course(found, f"personal/{name}_median") == pytest.approx(medians)


def test_a_scheme_without_personal_numbers_has_no_histograms(
    bouquet: Bouquet,
    tmp_path: Path,
) -> None:
    assert bouquet("simulate", *words(scheme="fedavg"), "--out", "run", "--tensorboard").code == 0
    assert read_back(tmp_path / "run").Tags()["histograms"] == []


def test_nothing_is_written_unless_asked_for(start: Callable[..., Run]) -> None:
    assert not (start(rounds=1, nodes=1, data={"clients": 2}).path / "tensorboard").exists()


def test_a_run_that_goes_on_has_all_its_rounds(bouquet: Bouquet, tmp_path: Path) -> None:
    """Also those from before anybody asked for them."""
    assert bouquet("simulate", *words(scheme="apfl", rounds="2"), "--out", "run").code == 0
    again = bouquet("simulate", "--resume", "run", "-c", "rounds=4", "--tensorboard")
    assert again.code == 0, again.err
    found = read_back(tmp_path / "run")
    assert list(course(found, "loss/personal")) == [1, 2, 3, 4]
    assert [one.step for one in found.Histograms("personal/alpha")] == [1, 2, 3, 4]


def test_rounds_that_were_undone_are_replaced(tmp_path: Path) -> None:
    def told(number: int, accuracy: float) -> Event:
        line: Event = json.loads(event(number, metrics={"shared_accuracy": accuracy}))
        return line | {"clients": [], "failures": []}

    run = write_run(tmp_path / "run")
    with tensorboard(run) as observe:
        for number in (1, 2, 3):
            observe(told(number, 0.25))
    with tensorboard(run) as observe:  # the checkpoint was of round 1
        for number in (2, 3):
            observe(told(number, 0.75))
    found = [(one.step, one.value) for one in read_back(run).Scalars("accuracy/shared")]
    assert found == [(1, 0.25), (2, 0.75), (3, 0.75)]


def test_what_is_not_finite_or_unknown_is_left_out() -> None:
    told: Event = json.loads(event(1, clients=[], metrics={"shared_loss": None}))
    assert not [name for name in scalars(told) if "loss" in name]
    assert scalars(told)["round/clients"] == 0.0


@pytest.mark.parametrize("command", ["simulate", "deploy"])
def test_without_the_package_one_sentence_says_so_before_anything_runs(
    bouquet: Bouquet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setattr("bouquet.watch.tensorboard.find_spec", lambda name: None)
    outcome = bouquet(command, *words(), "--out", "run", "--tensorboard")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "pip install 'bouquet[tensorboard]'" in outcome.err
    assert list(tmp_path.iterdir()) == []
