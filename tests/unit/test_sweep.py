"""A search over keys: what is chosen, on which data, and that a stop changes nothing."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bouquet
from bouquet.core.errors import BadInput
from bouquet.core.measure import ACCURATE, LOSS
from bouquet.data import DataConfig, load
from bouquet.jobs import prepared
from bouquet.report.outcomes import read_outcomes
from bouquet.report.page import write_report
from bouquet.settings import parse
from bouquet.storage.runfolder import RunFolder
from bouquet.sweeping import course
from bouquet.sweeping.asked import from_tables, read_file
from bouquet.sweeping.company import train
from bouquet.sweeping.grouping import align, grouped
from bouquet.sweeping.space import settings_of
from bouquet.sweeping.trials import Score, Trial, best, scores, trials_of
from tests.conftest import Run

# Runs that are over at once, in this process, one after the other.
SMALL: dict[str, Any] = {
    "rounds": 2,
    "local_steps": 2,
    "model": "linear",
    "workers": 1,
    "progress": False,
}
KEYS = {"rounds": 2, "local-steps": 2, "data.clients": 3, "model.name": "linear"}
TABLES: dict[str, Any] = {"schemes": ["fedavg"], "grid": {"lr": [0.1, 1.0]}, "keys": KEYS}


def clients(mislabelled: bool = False) -> dict[str, Any]:
    """Three clients whose test data are their own part, rightly labelled or not."""
    rng = np.random.default_rng(0)
    found = {}
    for name in ("a", "b", "c"):
        x = rng.normal(size=(40, 5)).astype("float32")
        y = (x[:, 0] + x[:, 1] > 0).astype(int)
        y_test = 1 - y[30:] if mislabelled else y[30:]
        found[name] = (x[:30], y[:30], x[30:], y_test)
    return found


def ends(folder: Path) -> dict[str, bytes]:
    """All that a sweep's trials and runs found out, by file."""
    files = [*folder.glob("*/*/clients.csv"), *folder.glob("*/*/history.jsonl")]
    files += [folder / "chosen.json", folder / "trials.csv"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> bouquet.Sweep:
    """A sweep that many tests look at."""
    return bouquet.sweep(
        ["fedavg", "apfl"],
        grid={"lr": [0.01, 0.3], "apfl": {"alpha": [0.2, 0.8]}},
        trials=3,
        seeds=[0, 1],
        clients=3,
        out=tmp_path_factory.mktemp("swept") / "sweep",
        **SMALL,
    )


# What is held out


def test_a_run_can_be_judged_on_what_it_holds_out(start: Callable[..., Run]) -> None:
    keys = {"rounds": 1, "data": {"clients": 3}, "validation": 0.3, "save_outcomes": True}
    run = start(scheme="apfl", evaluate_on="validation", **keys)
    for row in run.clients:
        right = read_outcomes(run.path)[row["client"]].right["validation_personal"]
        assert float(row["personal_accuracy"]) == pytest.approx(right.mean(), abs=1e-6)


def test_folds_have_nothing_in_common_and_leave_nothing_out() -> None:
    whole = load(DataConfig(clients=3, partition="iid"), 0, torch.float32)
    parts = [whole.holding_out(0.0, 0, 5, fold).clients for fold in range(5)]
    for client, split in whole.clients.items():
        held = [part[client].validation for part in parts]
        assert torch.equal(torch.cat(held).sort().values, split.train)
        assert max(map(len, held)) - min(map(len, held)) <= 1
        for part in parts:
            own = torch.cat([part[client].train, part[client].validation])
            assert torch.equal(own.sort().values, split.train)
            assert torch.equal(part[client].test, split.test)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"validation-folds": 1}, "validation-folds must be 0 or at least 2, not 1"),
        ({"validation-folds": 3, "validation": 0.2}, "Set validation or validation-folds"),
        ({"validation-folds": 3, "validation-fold": 3}, "validation-fold must be less than"),
        ({"validation-fold": 1}, "validation-fold must be less than validation-folds, 0"),
        ({"evaluate-on": "validation"}, "evaluate-on must be 'test' where nothing is held out"),
        (
            {"evaluate-on": "all"},
            "evaluate-on must be one of 'test', 'test,train', 'validation', not 'all'",
        ),
    ],
)
def test_what_cannot_be_held_out_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse(keys)


def test_more_folds_than_a_client_has_examples_are_refused_by_name() -> None:
    few = load(DataConfig(name="synthetic", clients=2, examples=4), 0, torch.float32)
    with pytest.raises(BadInput, match="at most 3, the training examples of client 000, not 4"):
        few.holding_out(0.0, 0, 4, 0)


# The choice


def test_settings_are_compared_by_what_their_runs_reach_on_validation_data(
    swept: bouquet.Sweep, tmp_path: Path
) -> None:
    (row,) = [row for row in swept.trials().rows if row[:3] == ("fedavg", 0.3, "")]
    keys = {k: v for k, v in SMALL.items() if k != "workers"} | {"clients": 3, "lr": 0.3}
    found = [
        bouquet.simulate(
            "fedavg", seed=seed, validation=0.2, evaluate_on="validation", nodes=1,
            out=tmp_path / str(seed), **keys,
        ).summary["personal"]
        for seed in (0, 1)
    ]  # fmt: skip
    assert row[3] == pytest.approx(np.mean([one["accuracy"]["mean"] for one in found]))
    assert row[4] == pytest.approx(np.mean([one["loss"]["mean"] for one in found]))


def test_each_scheme_gets_the_setting_that_does_best(swept: bouquet.Sweep) -> None:
    for scheme, setting in swept.chosen.items():
        lines = [row for row in swept.trials().rows if row[0] == scheme]
        _, lr, alpha, *_ = max(lines, key=lambda row: float(row[3]))
        assert setting == {"lr": lr} | ({"apfl.alpha": alpha} if scheme == "apfl" else {})


def test_what_is_chosen_runs_on_all_training_data_and_is_judged_on_test_data(
    swept: bouquet.Sweep, tmp_path: Path
) -> None:
    alone = bouquet.simulate(
        "fedavg", lr=swept.chosen["fedavg"]["lr"], seed=1, nodes=1, clients=3, rounds=2,
        local_steps=2, model="linear", out=tmp_path / "alone", progress=False,
    )  # fmt: skip
    assert swept.runs[1].clients == alone.clients
    assert [run.summary["scheme"] for run in swept.runs] == ["fedavg"] * 2 + ["apfl"] * 2
    table = swept.table()
    assert table.columns[:3] == ("scheme", "chosen", "seeds")
    assert table.rows[0][1] == f"lr={swept.chosen['fedavg']['lr']}"
    means = [run.summary["personal"]["accuracy"]["mean"] for run in swept.runs[:2]]
    assert table.rows[0][5:7] == pytest.approx((np.mean(means), np.std(means, ddof=1)))


@pytest.mark.parametrize("how", [{}, {"folds": 2}], ids=["a share", "folds"])
def test_test_data_have_no_part_in_the_choice(how: dict[str, Any], tmp_path: Path) -> None:
    sweeps = [
        bouquet.sweep(
            ["apfl"], data=clients(wrong), grid={"lr": [0.001, 1.0]}, out=tmp_path / str(wrong),
            **how, **SMALL,
        )
        for wrong in (False, True)
    ]  # fmt: skip
    right, wrong = (one.runs[0].summary["personal"]["accuracy"]["mean"] for one in sweeps)
    assert right == pytest.approx(1 - wrong)  # the test data are others
    assert sweeps[0].chosen == sweeps[1].chosen == {"apfl": {"lr": 1.0}}
    assert str(sweeps[0].trials()) == str(sweeps[1].trials())


def test_ties_go_to_the_lower_loss_and_then_to_the_first() -> None:
    def score(number: int, value: float, loss: float, measure: Any = ACCURATE) -> Score:
        return Score("fedavg", number, {}, measure, value, loss, 1, ())

    lost = score(0, math.nan, math.nan)
    found = [lost, score(1, 0.5, 0.1), score(2, 0.9, 0.3), score(3, 0.9, 0.2), score(4, 0.9, 0.2)]
    assert [one.number for one in best(found)["fedavg"]] == [3, 4, 2, 1, 0]
    losses = [score(0, 0.3, 0.3, LOSS), score(1, 0.2, 0.2, LOSS), lost]
    assert best(losses)["fedavg"][0].number == 1


def test_the_loss_may_decide(swept: bouquet.Sweep) -> None:
    found = scores(
        from_tables(swept_tables(swept) | {"measure": "loss"}),
        trials_of(from_tables(swept_tables(swept)), swept.folder),
    )
    assert all(one.measure == LOSS and one.value == one.loss for one in found)


def swept_tables(swept: bouquet.Sweep) -> dict[str, Any]:
    return read_file(swept.folder / "sweep.toml")[0].told()


def test_a_setting_that_diverges_is_left_out(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"clients": 3, "diverged_at": 2.0, **SMALL, "local_steps": 10}
    grid = {"lr": [1000.0, 0.1]}
    found = bouquet.sweep(["fedavg"], grid=grid, out=tmp_path / "one", **keys)
    assert found.chosen == {"fedavg": {"lr": 0.1}}
    assert "diverged" in (found.folder / "trials.csv").read_text()
    with pytest.raises(bouquet.RunFailed, match=r"No setting of fedavg came to an end: .*diverged"):
        bouquet.sweep(["fedavg"], grid={"lr": [1000.0]}, out=tmp_path / "none", **keys)


# The settings


def test_every_scheme_tries_as_many_settings() -> None:
    tables = TABLES | {"schemes": ["fedavg", "apfl"]}
    grid = {"lr": [0.1, 0.2, 0.3], "apfl": {"alpha": [0.1, 0.5]}}
    with pytest.raises(BadInput, match=r"grids differ in size \(fedavg 3, apfl 6\)"):
        settings_of(from_tables(tables | {"grid": grid}))
    found = settings_of(from_tables(tables | {"grid": grid, "trials": 3}))
    assert found["fedavg"] == [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}]
    assert len(found["apfl"]) == 3
    assert len({tuple(one.items()) for one in found["apfl"]}) == 3
    assert all(one.keys() == {"lr", "apfl.alpha"} for one in found["apfl"])


def test_random_settings_are_drawn_by_the_seed_and_alike_for_all_schemes() -> None:
    grid = {
        "lr": {"low": 0.001, "high": 1.0, "log": True},
        "batch-size": {"low": 5, "high": 9},
        "weights": ["uniform", "examples"],
    }
    tables = TABLES | {"schemes": ["fedavg", "apfl"], "grid": grid}
    tables |= {"search": "random", "trials": 50}
    found = settings_of(from_tables(tables))
    assert found["fedavg"] == found["apfl"] == settings_of(from_tables(tables))["apfl"]
    assert found != settings_of(from_tables(tables | {"tune-seeds": [1]}))
    rates = [float(one["lr"]) for one in found["apfl"]]
    assert all(0.001 <= rate <= 1.0 for rate in rates)
    assert 15 <= sum(rate < math.sqrt(0.001) for rate in rates) <= 35
    assert {one["batch-size"] for one in found["apfl"]} == {5, 6, 7, 8, 9}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"schemes": []}, r"schemes must be a list such as \['fedavg', 'apfl'\], not \[\]"),
        ({"schemes": ["fedavg", "fedavg"]}, "schemes has 'fedavg' more than once"),
        ({"schemes": ["fedavgg"]}, "fedavgg"),
        ({"seeds": [0, 0]}, r"seeds must be different whole numbers such as .* not \[0, 0\]"),
        ({"tune-seeds": []}, "tune-seeds must be different whole numbers"),
        ({"search": "bayes"}, "search must be one of 'grid', 'random', not 'bayes'"),
        ({"search": "random"}, "trials must be above 0 with search = 'random'"),
        ({"stop": "soon"}, "stop must be one of 'never', 'halving', not 'soon'"),
        ({"measure": "luck"}, "measure must be one of 'metric', 'loss', not 'luck'"),
        ({"together": -1}, "together must be a whole number from 0 to 1000, not -1"),
        ({"trials": -1}, "trials must be a whole number from 0 to 100000, not -1"),
        ({"validation": 0.0}, "validation must be above 0"),
        ({"validation": 0.2, "folds": 5}, "Set validation or folds, not both: they are 0.2 and 5"),
        ({"folds": 1}, "folds must be 0 or at least 2, not 1"),
        ({"lr": 0.1}, "Unknown key lr of a sweep"),
        ({"keys": 3}, "keys must be a table of keys, not 3"),
        ({"keys": {"rnds": 3}}, "Unknown key rnds: did you mean rounds"),
        ({"keys": {"rounds": 0}}, "rounds must be a whole number of at least 1, not 0"),
        ({"keys": {"seed": 3}}, "keys: seed cannot be set here"),
        ({"keys": {"lr": 0.1}}, r"lr is in \[keys\] and in \[grid\]"),
        ({"grid": {}}, "grid must name a key to search"),
        ({"grid": {"validation": [0.1]}}, "grid: validation cannot be set here"),
        ({"grid": {"apfl": {"alpha": [0.1]}}}, "grid: apfl.alpha counts for none of the schemes"),
        ({"grid": {"lr": 0.1}}, r"grid: lr must be a list such as \[0.01, 0.1\]"),
        ({"grid": {"lr": [0.1, 0.1]}}, "grid: lr has a value more than once"),
        ({"grid": {"lr": [0.1, -1]}}, "lr must be a number above 0, not -1"),
        ({"grid": {"lr": {"low": 0.1, "high": 1.0}}}, "grid: lr is a range"),
        ({"grid": {"lr": {"low": 1.0, "high": 0.1}}}, "low must be less than high, not 1.0"),
        ({"grid": {"lr": {"low": 0.1}}}, "grid: lr must have low and high"),
        ({"grid": {"weights": {"low": 1, "high": 2}}}, "grid: weights must be a list"),
        ({"grid": {"grad-clip": {"low": 0, "high": 2, "log": True}}}, "low must be above 0"),
        ({"grid": {"lr": {"low": 0.1, "high": 2, "log": 1}}}, "log must be true or false, not 1"),
        ({"stop": "halving", "grid": {"rounds": [1, 2]}, "keys": {}}, "rounds cannot be searched"),
        ({"stop": "halving", "grid": {"lr-schedule": ["linear"]}}, "must not be 'linear'"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_one_sentence(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        from_tables(TABLES | tables)
    assert str(refused.value).count(". ") == 0


def test_a_setting_that_a_run_would_refuse_stops_the_sweep_before_it_begins(tmp_path: Path) -> None:
    grid = {"warmup": [0, 5]}
    with pytest.raises(BadInput, match="warmup must be less than the 2 rounds"):
        bouquet.sweep(["fedavg"], grid=grid, clients=3, out=tmp_path / "sweep", **SMALL)
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_refused_by_its_first_run_leaves_nothing_behind(tmp_path: Path) -> None:
    keys = {"clients": 3, "clients_per_round": 9, "out": tmp_path / "sweep", **SMALL}
    with pytest.raises(BadInput, match="clients-per-round must be at most 3"):
        bouquet.sweep(["fedavg"], grid={"lr": [0.1]}, **keys)
    assert not (tmp_path / "sweep").exists()


# Going on


def test_the_same_command_goes_on_and_repeats_nothing(swept: bouquet.Sweep, tmp_path: Path) -> None:
    asked = read_file(swept.folder / "sweep.toml")[0]
    before = ends(swept.folder)
    times = {path: path.stat().st_mtime_ns for path in swept.folder.glob("*/*/events.jsonl")}
    assert course.folder_of(asked, str(swept.folder), "digits") == swept.folder
    again = bouquet.sweep(resume=swept.folder, workers=1, progress=False)
    assert ends(again.folder) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(times) == 2 * 2 + 2 * 3 + 4
    other = from_tables(asked.told() | {"seeds": [0]})
    with pytest.raises(BadInput, match=r"holds another sweep, whose seeds is \[0, 1\], not \[0\]"):
        course.folder_of(other, str(swept.folder), "digits")
    with pytest.raises(BadInput, match="holds no sweep"):
        bouquet.sweep(resume=tmp_path)
    with pytest.raises(BadInput, match="resume goes on with a sweep as it is"):
        bouquet.sweep(["fedavg"], resume=swept.folder)


def test_a_sweep_that_is_killed_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    keys = KEYS | {"rounds": 12, "eval-every": 1}
    asked = from_tables(TABLES | {"schemes": ["apfl"], "seeds": [0, 1], "keys": keys})
    (tmp_path / "sweep.toml").write_bytes(asked.to_toml())
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    words = ["sweep", "sweep.toml", "--out", "killed", "--workers", "2", "--quiet"]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "bouquet", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    while not any(killed.glob("trials/*/events.jsonl")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # Its workers find out by themselves; until then they hold the folder.
    course.run(asked, killed, count=2, quiet=True)
    course.run(asked, whole, count=1, quiet=True)  # by this process, without workers
    assert ends(killed) == ends(whole)


def test_two_sweeps_do_not_share_a_folder(
    swept: bouquet.Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bouquet.sweeping import lock

    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    with (
        lock.locked(swept.folder),
        pytest.raises(BadInput, match="is at work in another process"),
    ):
        bouquet.sweep(resume=swept.folder, workers=1, progress=False)


# Trials that train together


def numbers_of(groups: list[list[Trial]]) -> list[list[tuple[str, int, int]]]:
    return [[(one.name, one.seed, one.number) for one in group] for group in groups]


def test_trials_that_differ_in_numbers_alone_are_grouped_seed_by_seed(tmp_path: Path) -> None:
    grid = {"lr": [0.1, 0.2, 0.3, 0.4, 0.5]}
    asked = from_tables(TABLES | {"schemes": ["fedavg", "apfl"], "seeds": [0, 1], "grid": grid})
    trials = trials_of(asked, tmp_path)
    each = [[(name, s, n) for n in range(5)] for s in (0, 1) for name in ("fedavg", "apfl")]
    assert numbers_of(grouped(trials, 0)) == each
    assert all(len(group) == 1 for group in grouped(trials, 1))
    assert [len(group) for group in grouped(trials, 7)] == [7, 7, 3, 3]


def test_few_settings_are_filled_up_with_other_seeds_and_many_are_cut(tmp_path: Path) -> None:
    few = from_tables(TABLES | {"seeds": [0, 1, 2]})
    assert [len(group) for group in grouped(trials_of(few, tmp_path), 0)] == [4, 2]
    many = from_tables(TABLES | {"grid": {"lr": [0.1 * n for n in range(1, 11)]}})
    assert [len(group) for group in grouped(trials_of(many, tmp_path), 0)] == [8, 2]


def test_trials_whose_shapes_differ_train_apart(tmp_path: Path) -> None:
    grid = {"lr": [0.1, 0.2], "batch-size": [5, 10], "data.dirichlet-alpha": [0.1, 1.0]}
    groups = grouped(trials_of(from_tables(TABLES | {"grid": grid}), tmp_path), 0)
    assert len(groups) == 4
    for group in groups:
        assert len({tuple(list(one.setting.items())[1:]) for one in group}) == 1


def test_trials_killed_between_two_checkpoints_go_back_to_the_earlier(tmp_path: Path) -> None:
    trials = trials_of(from_tables(TABLES), tmp_path)
    for one, rounds in zip(trials, (3, 2), strict=True):
        assert train(prepared([one.plan(rounds)], "inline"), [lambda event: None]) == [None]
    align(trials)
    assert [RunFolder(one.folder).read_checkpoint().round for one in trials] == [2, 2]


# Early ends


def test_halving_goes_on_with_the_best_third_and_they_end_as_if_never_stopped(
    tmp_path: Path,
) -> None:
    tables = TABLES | {"grid": {"lr": [0.001, 0.1, 0.5]}, "keys": KEYS | {"rounds": 6}}
    tables |= {"together": 1}  # beside others, the last bits may be others
    whole, halved = from_tables(tables), from_tables(tables | {"stop": "halving"})
    assert course.rungs(halved, tmp_path) == [2, 6]
    for asked, name in ((whole, "whole"), (halved, "halved")):
        course.run(asked, tmp_path / name, count=1, quiet=True)
    done = {
        path.parent.name: json.loads(path.read_text())["rounds"]
        for path in (tmp_path / "halved").glob("trials/*/summary.json")
    }
    assert sorted(done.values()) == [2, 2, 6]
    stays = next(name for name, rounds in done.items() if rounds == 6)
    ended = [tmp_path / name / "trials" / stays / "clients.csv" for name in ("whole", "halved")]
    assert ended[0].read_bytes() == ended[1].read_bytes()
    assert not list((tmp_path / "halved").glob("trials/*/server"))


# What is shown


def test_a_report_shows_what_was_chosen_and_how_much_it_matters(
    swept: bouquet.Sweep, tmp_path: Path
) -> None:
    files = write_report([swept.folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    names = {path.name for path in files}
    assert {"page-sensitivity.png", "page-sensitivity.svg", "page-trials.csv"} <= names
    assert (tmp_path / "page-sensitivity.png").read_bytes().startswith(b"\x89PNG")
    assert "Report on 4 runs" in page  # those of what was chosen, and no trial
    for name, setting in swept.chosen.items():
        assert f"<td>{name}</td><td>lr={setting['lr']}" in page
    drawing = (tmp_path / "page-sensitivity.svg").read_text()
    assert "apfl.alpha" in drawing


def test_a_report_of_a_sweep_that_has_chosen_nothing_yet_says_so(
    swept: bouquet.Sweep, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "sweep.toml").write_bytes((swept.folder / "sweep.toml").read_bytes())
    write_report([begun], tmp_path / "page.html")
    assert "Nothing is chosen yet" in (tmp_path / "page.html").read_text()


def test_the_command_tells_of_each_run_and_ends_with_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from bouquet.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    (tmp_path / "mine.toml").write_bytes(from_tables(TABLES).to_toml())

    def said(*words: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["bouquet", "sweep", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        printed = capfd.readouterr()
        return printed.out, printed.err

    out, err = said("mine.toml", "--out", "found", "--workers", "1")
    assert "fedavg-000-seed0 validation accuracy" in err
    assert "3/3 runs  fedavg-seed0 test accuracy" in err
    assert "0:00:00 left" in err
    assert "chosen" in out
    assert "lr=" in out
    told = json.loads(said("--resume", "found", "--workers", "1", "--json")[0])
    assert told["chosen"]["fedavg"]["tried"] == 2
    assert [run["scheme"] for run in told["runs"]] == ["fedavg"]
