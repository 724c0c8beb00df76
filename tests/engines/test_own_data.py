"""Devices that have their own rows of a table, and no others."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.client_app.predictor import find_predictor, read_predictor
from tests.conftest import Run
from tests.engines.test_devices import Devices, Start, deployed
from tests.unit.test_cli import Bouquet, Outcome, bouquet

__all__ = ["bouquet", "deployed"]  # fixtures

HOSPITALS = ("003", "07", "west")
HEAD = "hospital,age,income,sex,outcome"
DATA: dict[str, Any] = {
    "name": "folder",
    "client_column": "hospital",
    "label_column": "outcome",
    "categories": "one-hot",
    "missing": "mean",
    "scale": "standard",
}
KEYS: dict[str, Any] = {
    "scheme": "apfl",
    "rounds": 3,
    "local_steps": 2,
    "save_predictors": True,
    "validation": 0.2,
    "model": {"name": "linear"},
}


def rows(hospital: str) -> list[str]:
    """No hospital has seen every outcome and both sexes but the last."""
    rng = np.random.default_rng(len(hospital))
    kinds = {"003": ("f", ["ill", "well"]), "07": ("m", ["ill", "well"])}
    sex, outcomes = kinds.get(hospital, ("fm", ["dead", "ill", "well"]))
    return [
        f"{hospital},{rng.integers(20, 90)},{rng.normal(30_000, 9_000):.0f},"
        f"{sex[number % len(sex)]},{outcomes[number % len(outcomes)]}"
        for number in range(24)
    ]


def write(place: Path, head: str, lines: list[str], classes: str = "dead ill well") -> Path:
    place.mkdir(parents=True)
    (place / "t.csv").write_text("\n".join([head, *lines]) + "\n")
    (place / "classes.txt").write_text("\n".join(classes.split()) + "\n")
    (place / "categories.json").write_text(json.dumps({"sex": ["f", "m"]}))
    return place / "t.csv"


def devices(folder: Path, tables: list[Path]) -> Devices:
    grid = Devices(folder, HOSPITALS)
    for context, table in zip(grid._contexts.values(), tables, strict=True):
        context.node_config["data.path"] = str(table)
    return grid


def test_devices_with_their_own_rows_end_with_the_bits_of_a_simulation_of_the_whole_table(
    tmp_path: Path, start: Start, deployed: Start
) -> None:
    whole = write(tmp_path / "whole", HEAD, [row for one in HOSPITALS for row in rows(one)])
    simulated = start(**KEYS, nodes=3, data=DATA | {"path": str(whole)})
    own = [write(tmp_path / "own" / one, HEAD, rows(one)) for one in HOSPITALS]
    run = deployed(grid=devices(tmp_path / "devices", own), **KEYS, data=DATA)
    assert run.sha == simulated.sha
    assert (run.path / "classes.txt").read_text() == "dead\nill\nwell\n"
    assert (simulated.path / "classes.txt").read_text() == "dead\nill\nwell\n"
    assert [row["client"] for row in run.clients] == list(HOSPITALS)
    for one in HOSPITALS:
        mine = read_predictor(find_predictor(tmp_path / "devices" / one, one))
        theirs = read_predictor(find_predictor(simulated.path, one))
        assert mine.preparation == theirs.preparation
        assert mine.names == ("dead", "ill", "well")
        assert mine.inputs == ("age", "income", "sex=f", "sex=m", "sex=")  # m, f, or a gap


def test_a_model_reads_columns_by_their_names(
    tmp_path: Path, start: Start, bouquet: Bouquet
) -> None:
    whole = write(tmp_path / "whole", HEAD, [row for one in HOSPITALS for row in rows(one)])
    run = start(**KEYS, nodes=1, data=DATA | {"path": str(whole)})

    def predict(text: str) -> Outcome:
        Path("new.csv").write_text(text)
        return bouquet("node", "predict", "new.csv", "--state-dir", run.path, "--client", "west")

    one = predict("age,income,sex\n30,20000,m\n,40000,f\n")
    other = predict("note,sex,income,age\nx,m,20000,30\ny,f,40000,NA\n")
    assert one.code == 0
    assert one.out == other.out
    assert set(one.out.split()) <= {"dead", "ill", "well"}
    for text, said in (
        ("age,sex\n30,m\n", "new.csv has no column for the input 'income' of the model."),
        ("age,income,sex\n30,1,x\n", "new.csv, line 2, column 'sex': 'x' is none of 'f', 'm', ''."),
        ("age,income,sex\nold,1,m\n", "new.csv, column 'age' must have numbers"),
    ):
        outcome = predict(text)
        assert outcome.code == 2
        assert said in outcome.err


def without_07(deployed: Start, grid: Devices) -> Run:
    """A run that two devices are enough for."""
    return deployed(grid=grid, **KEYS | {"min_clients": 2, "rounds": 5}, data=DATA)


def assert_told(run: Run, why: str) -> None:
    """The one that differs was left out, for why, or because the others were more by then."""
    assert {row["client"] for row in run.clients} == {*HOSPITALS} - {"07"}
    told = [one["reason"] for event in run.events for one in event.get("left_out", [])]
    assert told
    assert all(re.search(f"{why}|Most nodes say something else", reason) for reason in told)


def test_devices_must_mean_the_same_by_a_class(tmp_path: Path, deployed: Start) -> None:
    own = [
        write(tmp_path / one, HEAD, rows(one), "ill dead well" if one == "07" else "dead ill well")
        for one in HOSPITALS
    ]
    run = without_07(deployed, devices(tmp_path / "devices", own))
    assert_told(run, r"disagree on the classes' names: classes\.txt must be one")


def test_devices_must_have_the_same_columns_in_the_same_order(
    tmp_path: Path, deployed: Start
) -> None:
    turned = "hospital,income,age,sex,outcome"
    own = [write(tmp_path / one, turned if one == "07" else HEAD, rows(one)) for one in HOSPITALS]
    run = without_07(deployed, devices(tmp_path / "devices", own))
    assert_told(run, r"disagree on the columns of inputs .* in data\.columns")
    named = DATA | {"columns": "age,income,sex"}
    deployed(grid=devices(tmp_path / "more", own), **KEYS, data=named)
