"""The report: what it reads, what it writes, and what it makes of broken folders."""

import csv
import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
import torch

from bouquet.core.errors import BadInput
from bouquet.data import DataConfig, load
from bouquet.report.comparison import comparison
from bouquet.report.figures import course_of, draw_all
from bouquet.report.outcomes import read_outcomes, verdicts
from bouquet.report.page import write_report
from bouquet.storage.files import OUTCOMES, file_name, seal
from bouquet.storage.runs import find, grouped, labels, read, read_all, read_events
from tests.conftest import Run

KEYS = {
    "rounds": 2,
    "nodes": 1,
    "local_steps": 2,
    "data": {"clients": 3, "partition": "iid"},
    "model": {"name": "linear"},
    "save_outcomes": True,
    "validation": 0.25,
}


def write_run(path: Path, events: str = "", **keys: object) -> Path:
    """A made-up run."""
    path.mkdir(parents=True)
    told = {"scheme": "apfl", "rounds": 3, "seed": 0, **keys}
    lines = [f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in told.items()]
    (path / "config.toml").write_text("\n".join(lines) + '\n[data]\nname = "digits"\n')
    (path / "events.jsonl").write_text(events)
    return path


def event(round_: int, **more: object) -> str:
    """A line of the log."""
    whole = {
        "round": round_,
        "stage": "apfl",
        "seconds": 1.0,
        "timing": {},
        "nodes": {},
        "clients": [],
        "failures": [],
        "bytes_up": 0,
        "bytes_down": 0,
        "metrics": {"shared_accuracy": 0.5, "personal_accuracy": 0.6, "personal_accuracy_p10": 0.1},
    }
    return json.dumps(whole | more)


def write_outcome(run: Path, client: str, examples: str = "same", **right: list[int]) -> None:
    (run / "outcomes").mkdir(exist_ok=True)
    tensors = {name: torch.tensor(values).float() for name, values in right.items()}
    header = {"client": client, "test": examples}
    if any(name.startswith("validation") for name in right):
        header["validation"] = examples
    (run / "outcomes" / f"{file_name(client)}.safetensors").write_bytes(
        seal(OUTCOMES, header, tensors)
    )


# Outcomes of real runs


def test_outcomes_agree_with_the_table_of_clients(start: Callable[..., Run]) -> None:
    run = start(scheme="apfl", **KEYS)
    found = read_outcomes(run.path)
    for row in run.clients:
        right = found[row["client"]].right
        for whose in ("shared", "personal"):
            accuracy = float(row[f"{whose}_accuracy"])
            assert right[f"test_{whose}"].mean() == pytest.approx(accuracy, abs=1e-6)
            assert len(right[f"test_{whose}"]) == int(row["test_examples"])


def test_validation_is_taken_from_training_and_test_data_stay(start: Callable[..., Run]) -> None:
    held = load(DataConfig(clients=3, partition="iid"), 0, torch.float32)
    run = start(scheme="fedavg", **KEYS)
    found = read_outcomes(run.path)
    for row in run.clients:
        split = held.clients[row["client"]]
        validation = len(found[row["client"]].right["validation_shared"])
        assert validation == round(len(split.train) * 0.25)
        assert int(row["train_examples"]) + validation == len(split.train)
        assert int(row["test_examples"]) == len(split.test)


def test_what_is_held_out_is_the_clients_own_and_in_neither_other_part() -> None:
    whole = load(DataConfig(clients=4, partition="iid"), 0, torch.float32)
    parts = whole.holding_out(0.3, 0)
    for client, split in parts.clients.items():
        both = torch.cat([split.train, split.validation]).sort().values
        assert torch.equal(both, whole.clients[client].train)
        assert torch.equal(split.test, whole.clients[client].test)
    assert torch.equal(
        parts.clients["000"].validation, whole.holding_out(0.3, 0).clients["000"].validation
    )
    assert whole.holding_out(0.0, 0) is whole


def test_a_client_that_cannot_hold_anything_out_is_named(
    start: Callable[..., Run], quadratics: object
) -> None:
    with pytest.raises(BadInput, match=r"validation must be 0: client .* has 1 training example"):
        start(scheme="fedavg", **quadratics.keys, validation=0.5)  # type: ignore[attr-defined]


def test_outcomes_are_not_written_unless_asked_for(start: Callable[..., Run]) -> None:
    assert not (start(scheme="apfl", **KEYS | {"save_outcomes": False}).path / "outcomes").exists()


def test_a_real_report_has_all_it_promises(start: Callable[..., Run], tmp_path: Path) -> None:
    runs = [start(scheme=scheme, **KEYS).path for scheme in ("apfl", "local")]
    written = write_report(runs, tmp_path / "report.html")
    assert {path.name for path in written} == {
        "report.html",
        "report-comparison.csv",
        "report-clients.csv",
        *(
            f"report-{name}.{kind}"
            for name in ("accuracy", "loss", "spread", "change")
            for kind in ("png", "svg")
        ),
    }
    page = written[0].read_text()
    assert "The personal model against shared, of 3 clients" in page
    assert "The personal model against Local, of 3 clients" in page
    assert "To deploy, chosen on validation examples" in page
    assert "<script" not in page
    assert not re.findall(r"(?:src|href|srcset)=\"(?!data:)", page)  # opens without any other file
    with open(tmp_path / "report-clients.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert {row["advice"] for row in rows} <= {"shared", "personal", "local"}


# The verdict's table


def test_a_client_is_judged_against_local_only_on_the_same_examples(tmp_path: Path) -> None:
    mine, alone = (write_run(tmp_path / name, scheme=name) for name in ("apfl", "local"))
    better: dict[str, Any] = {"test_shared": [0] * 10, "test_personal": [1] * 10}
    write_outcome(mine, "a", **better)
    write_outcome(mine, "b", **better)
    write_outcome(alone, "a", test_shared=[0] * 10, test_personal=[0] * 9 + [1])
    write_outcome(alone, "b", "others", test_shared=[0] * 10, test_personal=[0] * 10)
    runs = [read(mine), read(alone)]
    found = verdicts(runs[0], runs)
    assert found is not None
    first, second = found.rows
    assert (first["better_on_local"], first["worse_on_local"]) == (9, 0)
    assert first["p_local"] == 2 / 2**9
    assert "p_local" not in second
    assert [row["verdict"] for row in found.rows] == ["helped", "helped"]
    assert "2 helped and 0 hurt" in found.sentences()[0]


def test_the_model_to_deploy_is_chosen_on_validation_examples(tmp_path: Path) -> None:
    """On the test examples the personal model is best, but the client cannot know."""
    run = write_run(tmp_path / "run")
    write_outcome(
        run,
        "a",
        test_shared=[1, 0, 0, 0],
        test_personal=[1, 1, 1, 1],
        validation_shared=[1] * 7,
        validation_personal=[1] + [0] * 6,
    )
    found = verdicts(read(run), [])
    assert found is not None
    assert (found.rows[0]["advice"], found.rows[0]["advised_accuracy"]) == ("shared", 0.25)
    assert (found.rows[0]["advice_p"], found.rows[0]["advice_sure"]) == (2 / 64, True)


def test_too_few_validation_examples_leave_the_default_and_say_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    tests: dict[str, Any] = {"test_shared": [1, 0], "test_personal": [1, 1]}
    write_outcome(run, "a", **tests, validation_shared=[1, 1], validation_personal=[1, 0])
    write_outcome(run, "b", **tests, validation_shared=[0] * 6, validation_personal=[1] * 6)
    found = verdicts(read(run), [])
    assert found is not None
    assert [row["advice"] for row in found.rows] == ["personal", "personal"]
    assert [row["advice_sure"] for row in found.rows] == [False, True]
    assert "2 personal. For 1 of these 2 clients the examples show it" in found.sentences()[1]


# The comparison


def test_seeds_of_one_configuration_are_one_row(tmp_path: Path) -> None:
    scores = [0.8, 0.9, 0.85]
    for seed, score in enumerate(scores):
        run = write_run(tmp_path / f"s{seed}", event(1), seed=seed)
        summary = {"personal": {"accuracy": {"mean": score, "min": score / 2}}, "helped": 3}
        (run / "summary.json").write_text(json.dumps(summary))
    write_run(tmp_path / "other", event(1), lr=0.5)
    rows = comparison(read_all([tmp_path]))
    assert len(rows) == 2
    row = next(row for row in rows if row["seeds"] == "0 1 2")
    assert row["personal_accuracy"] == pytest.approx(mean(scores))
    assert row["personal_accuracy_std"] == pytest.approx(stdev(scores))
    assert row["helped_std"] == 0


def test_labels_name_only_what_tells_runs_apart(tmp_path: Path) -> None:
    for number, lr in enumerate((0.1, 0.5)):
        write_run(tmp_path / str(number), lr=lr, out=f"somewhere{number}")
    write_run(tmp_path / "z", scheme="fedavg", lr=0.7)
    assert labels(read_all([tmp_path])) == [
        "apfl on digits lr=0.1",
        "apfl on digits lr=0.5",
        "fedavg on digits",
    ]


# Broken folders


@pytest.mark.parametrize(
    "broken",
    ['{"round": 2, "stage', "", "nonsense", "[1]", '{"round": "x"}', '{"round": 2, "metrics": 3}'],
)
def test_a_broken_line_of_the_log_is_skipped(tmp_path: Path, broken: str) -> None:
    run = write_run(tmp_path / "run", f"{event(1)}\n{broken}\n{event(3)}\n")
    assert [one["round"] for one in read_events(run / "events.jsonl")] == [1, 3]


def test_a_page_is_made_of_a_run_that_was_cut(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", event(1) + "\n" + event(2)[:20])
    (run / "summary.json").write_text("{")
    (run / "clients.csv").write_bytes(b"client,node\n\xff\xfe,,,,\n")
    page = write_report([run], tmp_path / "page.html")[0].read_text()
    assert "save-outcomes=true" in page


def test_what_a_run_calls_itself_is_not_markup(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", event(1), scheme="<script>alert(1)</script>")
    write_outcome(run, "<b>x</b>", test_shared=[1, 0], test_personal=[1, 1])
    page = write_report([run], tmp_path / "page.html")[0].read_text()
    assert "<script" not in page
    assert "<b>x" not in page


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere is no folder\.$"):
        find(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"empty holds no run"):
        write_report([tmp_path / "empty"], tmp_path / "page.html")
    write_run(tmp_path / "fresh")
    with pytest.raises(BadInput, match=r"fresh holds no run with a finished round\.$"):
        write_report([tmp_path / "fresh"], tmp_path / "page.html")


def test_a_page_needs_a_place_and_a_name_for_a_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", event(1))
    with pytest.raises(BadInput, match=r"ends in \.html, not .*page\.txt"):
        write_report([run], tmp_path / "page.txt")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BadInput, match=r"--out: .*file cannot be made \(.+\)\.$"):
        write_report([run], tmp_path / "file" / "page.html")
    with pytest.raises(BadInput, match=r"--paper: .*file/here cannot be made \(.+\)\.$"):
        write_report([run], tmp_path / "page.html", tmp_path / "file" / "here")
    assert not list(tmp_path.glob("page*"))


def test_a_folder_for_the_page_is_made(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", event(1))
    written = write_report([run], tmp_path / "new" / "deep" / "page.html")
    assert written[0] == tmp_path / "new" / "deep" / "page.html"
    assert all(path.is_file() for path in written)
    with pytest.raises(BadInput, match="holds no run"):
        write_report([tmp_path / "new"], tmp_path / "other" / "page.html")
    assert not (tmp_path / "other").exists()  # what is refused leaves nothing behind


def test_figures_have_a_dark_twin_that_is_not_the_light_one(tmp_path: Path) -> None:
    write_run(tmp_path / "run", event(1) + "\n" + event(2))
    (picture,) = draw_all(grouped(read_all([tmp_path])))
    assert b"#ffffff" in picture.svg
    assert b"#14181d" in picture.dark
    assert b"#ffffff" not in picture.dark
    page = write_report([tmp_path], tmp_path / "page.html")[0].read_text()
    assert page.count('media="(prefers-color-scheme: dark)"') == 1
    assert page.count('media="(max-width: 40rem)"') == 1  # for phones


# Seeds


def seeded(tmp_path: Path, *accuracies: list[float | None]) -> list[Path]:
    """Runs that differ in their seeds and in what came of them."""
    runs = []
    for seed, values in enumerate(accuracies):
        metrics = [{"shared_accuracy": 0.5, "personal_accuracy": value} for value in values]
        lines = [event(n, metrics=one) for n, one in enumerate(metrics, start=1)]
        runs.append(write_run(tmp_path / f"seed{seed}", "\n".join(lines), seed=seed))
    return runs


def test_a_curve_is_the_mean_over_seeds_and_its_band_their_deviation(tmp_path: Path) -> None:
    """Of 0.2 and 0.6, the mean is 0.4 and the deviation √(2 · 0.2²) = 0.2828."""
    (group,) = grouped(read_all(seeded(tmp_path, [0.2, 0.5], [0.6, 0.5])))
    course = course_of(group, "personal_accuracy")
    assert course.rounds == [1, 2]
    assert course.mean == pytest.approx([0.4, 0.5])
    assert course.low == pytest.approx([0.4 - 0.08**0.5, 0.5])
    assert course.high == pytest.approx([0.4 + 0.08**0.5, 0.5])


def test_rounds_that_a_seed_lacks_are_not_averaged(tmp_path: Path) -> None:
    (group,) = grouped(read_all(seeded(tmp_path, [0.2, None, 0.4], [0.6, 0.5, 0.8, 0.9])))
    course = course_of(group, "personal_accuracy")
    assert course.rounds == [1, 3]
    assert course.mean == pytest.approx([0.4, 0.6])


def test_the_band_of_a_single_seed_is_over_its_clients(tmp_path: Path) -> None:
    write_run(tmp_path / "run", event(1))
    (group,) = grouped(read_all([tmp_path]))
    course = course_of(group, "personal_accuracy")
    assert (course.mean, course.low, course.high) == ([0.6], [0.1], [0.6])


def test_seeds_of_a_scheme_are_one_curve_and_schemes_are_two(tmp_path: Path) -> None:
    seeded(tmp_path, [0.2, 0.5], [0.6, 0.5], [0.4, 0.5])
    write_run(tmp_path / "other", event(1) + "\n" + event(2), scheme="local")
    page = tmp_path / "page.html"
    write_report([tmp_path], page)
    drawn = page.with_name("page-accuracy.svg").read_text()
    assert re.findall(r"<!-- (apfl.*|local.*) -->", drawn) == ["local", "apfl, 3 seeds"]
    assert "standard deviation of the seeds' means" in html.unescape(page.read_text())


def test_a_damaged_outcome_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", event(1))
    write_outcome(run, "a", test_shared=[1, 0], test_personal=[1, 1])
    path = run / "outcomes" / "a.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x09")
    with pytest.raises(BadInput, match=r"a\.safetensors is damaged"):
        write_report([run], tmp_path / "page.html")


def test_a_run_is_found_once_however_it_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "all" / "one", event(1))
    assert len(read_all([tmp_path / "all", run, run / ".." / "one"])) == 1
    shutil.rmtree(run)
    assert find(tmp_path / "all") == []


def test_outcomes_of_a_text_are_shares(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", event(1))
    write_outcome(run, "a", test_shared=[0.5, 0.25], test_personal=[0.75, 0.75])  # type: ignore[list-item]
    row = verdicts(read(run), []).rows[0]  # type: ignore[union-attr]
    assert row["better_on"] == 2
    assert row["change"] == pytest.approx(np.mean([0.25, 0.5]))
