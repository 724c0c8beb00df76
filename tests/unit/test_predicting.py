"""Regression and several labels from a CSV file to the table, the verdict, the page and the export.

Every client has slopes of its own, so one model for all is wrong for most of them.
"""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from safetensors import safe_open
from sklearn.metrics import f1_score, log_loss, mean_squared_error, r2_score
from torch import nn

import bouquet
from bouquet.cli.display import describe, newcomers, on_training_data
from bouquet.client_app.predictor import Predictor, export
from bouquet.core.errors import BadInput, RunFailed
from bouquet.data.folder import read_inputs
from bouquet.flower import PersonalizedStrategy, client_app
from bouquet.problem import problem
from bouquet.rebuild import predictor_of
from bouquet.report.outcomes import read_outcomes, verdicts
from bouquet.report.page import write_report
from bouquet.server_app.replies import Facts
from bouquet.settings import Settings, parse
from bouquet.storage.runs import read
from bouquet.strategies.registry import SCHEMES
from bouquet.watch.tensorboard import scalars
from bouquet.watch.views import details
from tests.conftest import Run
from tests.unit.test_flower import nodes

Start = Callable[..., Run]
Finished = Callable[[Settings], Run]
INPUTS = ("rain", "sun", "soil")
COLUMNS = {"values": ("height",), "several": ("sea", "forest", "city")}
SIZES = {"a": 48, "b": 37, "c": 61, "flat": 30}
FLAT = "flat"  # a client whose plants are all of one height, and whose scenes have no label


def write_csv(folder: Path, kind: str) -> Path:
    rng = np.random.default_rng(0)
    names = COLUMNS[kind]
    file = folder / f"{kind}.csv"
    with open(file, "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["client", *INPUTS, *names])
        for client, size in SIZES.items():
            slopes = rng.normal(0, 2, (3, len(names)))
            for x in rng.normal(size=(size, 3)).round(4):
                y = x @ slopes + 0.1 * rng.normal(size=len(names))
                y = (y > 0).astype(int) if kind == "several" else y.round(4)
                writer.writerow([client, *x, *(np.zeros_like(y) if client == FLAT else y)])
    return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {kind: write_csv(folder, kind) for kind in COLUMNS}


def keys(files: dict[str, Path], kind: str, **more: object) -> dict[str, object]:
    told: dict[str, object] = {
        "data.name": "folder",
        "data.path": str(files[kind]),
        "data.labels": kind,
        "data.label-column": ",".join(COLUMNS[kind]),
        "model.name": "linear",
        "dtype": "float64",
        "rounds": 4,
        "local-steps": 20,  # so many are recorded
        "lr": 0.05 if kind == "values" else 0.5,
        "eval-every": 2,
    }
    return told | more


def whole(files: dict[str, Path], kind: str) -> Settings:
    """A run that writes all there is to write."""
    everything = {"save-outcomes": True, "validation": 0.25, "evaluate-on": "test,train"}
    return parse(keys(files, kind, **everything, **{"save-predictors": True}))


every_kind = pytest.mark.parametrize("kind", COLUMNS)


def judged(kind: str, output: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Loss and metric by scikit-learn."""
    if kind == "values":
        return mean_squared_error(y, output), r2_score(y, output)
    chances = 1 / (1 + np.exp(-output))
    losses = [log_loss(one, said, labels=[0, 1]) for one, said in zip(y.T, chances.T, strict=True)]
    return float(np.mean(losses)), f1_score(y, output > 0, average="macro", zero_division=np.nan)


@every_kind
def test_the_table_says_what_scikit_learn_says_of_the_saved_models(
    kind: str, files: dict[str, Path], finished: Finished
) -> None:
    """On the test examples, and on those that were trained on."""
    settings = whole(files, kind)
    run, data = finished(settings), problem(settings).data
    metric = settings.run.metric
    for row in run.clients:
        split = data.clients[row["client"]]
        weights, bias = (run.predictor(row["client"], f"output.{p}") for p in ("weight", "bias"))
        for prefix, part in (("", split.test), ("train_", split.train)):
            output = data.x[part].numpy() @ weights.T + bias
            loss, number = judged(kind, output, data.y[part].numpy())
            assert float(row[f"{prefix}personal_loss"]) == pytest.approx(loss)
            if row["client"] != FLAT:
                assert float(row[f"{prefix}personal_{metric}"]) == pytest.approx(number)


def test_a_client_without_a_number_is_in_no_mean(
    files: dict[str, Path], finished: Finished
) -> None:
    """R² of plants of one height is not 0, nor NaN for everybody: the others' mean is said."""
    run = finished(whole(files, "values"))
    rows = {row["client"]: row for row in run.clients}
    assert rows[FLAT]["personal_r2"] == rows[FLAT]["train_shared_r2"] == ""
    assert rows[FLAT]["personal_loss"] != ""
    known = [float(rows[client]["personal_r2"]) for client in "abc"]
    spread = run.summary["personal"]["r2"]
    assert spread["mean"] == pytest.approx(np.mean(known))
    assert (spread["clients"], spread["min"]) == (3, pytest.approx(min(known)))
    assert "clients" not in run.summary["personal"]["loss"]
    assert run.events[-1]["metrics"]["personal_r2"] == pytest.approx(np.mean(known))
    assert run.summary["helped"] + run.summary["hurt"] <= 3
    gain = {one: float(rows[one]["personal_r2"]) - float(rows[one]["shared_r2"]) for one in "abc"}
    helped = [int(rows[one]["train_examples"]) for one in "abc" if gain[one] > 0]
    examples = run.summary["examples"]
    assert examples.get("helped", 0.0) == pytest.approx(np.mean(helped or [0]))
    assert examples["mean"] == np.mean([int(row["train_examples"]) for row in run.clients])
    history = [json.loads(one) for one in (run.path / "history.jsonl").read_text().splitlines()]
    assert history[-1]["personal_r2"][history[-1]["clients"].index(FLAT)] is None


@every_kind
def test_the_run_says_what_is_predicted_and_how_it_is_judged(
    kind: str, files: dict[str, Path], finished: Finished
) -> None:
    run = finished(whole(files, kind))
    metric = {"values": "r2", "several": "f1"}[kind]
    assert run.summary["metric"] == {"name": metric, "lower_is_better": False}
    assert (run.path / "classes.txt").read_text().split() == list(COLUMNS[kind])
    personal, shared = (run.summary[whose][metric]["mean"] for whose in ("personal", "shared"))
    assert personal > shared + 0.1
    train = run.summary["train"]
    sizes = [int(row["train_examples"]) for row in run.clients]
    losses = [float(row["train_personal_loss"]) for row in run.clients]
    assert train["personal"]["loss"]["weighted"] == pytest.approx(np.average(losses, weights=sizes))
    words = on_training_data(run.summary)
    assert words.startswith(f"apfl: on training data shared {metric} 0.")
    tags = scalars(read(run.path).events[-1])
    assert tags[f"{metric}/train_personal"] == pytest.approx(train["personal"][metric]["mean"])
    assert tags[f"{metric}/personal"] == pytest.approx(personal)


@every_kind
def test_the_verdict_is_by_the_loss_of_each_example(
    kind: str, files: dict[str, Path], finished: Finished
) -> None:
    run = finished(whole(files, kind))
    found = read_outcomes(run.path)
    for row in run.clients:
        for whose in ("shared", "personal"):
            losses = found[row["client"]].right[f"test_{whose}"]
            assert losses.mean() == pytest.approx(float(row[f"{whose}_loss"]), rel=1e-5)
    told = verdicts(read(run.path), [])
    assert told is not None
    said = {row["client"]: row["verdict"] for row in told.rows}
    assert said["a"] == said["c"] == "helped"
    assert "hurt" not in said.values()
    assert {row["advice"] for row in told.rows} <= {"shared", "personal"}


def test_a_page_says_how_it_was_judged(
    files: dict[str, Path], finished: Finished, tmp_path: Path
) -> None:
    run = finished(whole(files, "values"))
    page = write_report([run.path], tmp_path / "page.html")[0].read_text()
    assert "apfl, by the loss of each example" in page
    assert "sign-flip test" in page
    assert "McNemar" not in page
    assert "gives a mean loss of" in page
    names = {path.name for path in tmp_path.iterdir()}
    assert {"page-r2.png", "page-train-r2.png", "page-train-loss.svg"} <= names


@every_kind
def test_the_dashboard_has_both_kinds_of_examples(
    kind: str, files: dict[str, Path], finished: Finished
) -> None:
    run = finished(whole(files, kind))
    metric = run.summary["metric"]["name"]
    shown = details(read(run.path))
    assert shown["measure"]["name"] == metric
    for name in (f"personal_{metric}", f"train_personal_{metric}", "train_shared_loss_p90"):
        assert len(shown["curve"][name]) == 2
    rows = {row["client"]: row for row in shown["clients"]}
    assert rows["a"]["change"] > 0


@every_kind
def test_an_exported_model_knows_what_it_predicts(
    kind: str, files: dict[str, Path], finished: Finished, tmp_path: Path
) -> None:
    run = finished(whole(files, kind))
    predictor = predictor_of(run.path, "a")
    assert (predictor.targets, predictor.names) == (kind, COLUMNS[kind])
    written = export(predictor, tmp_path)
    with safe_open(written[0], "pt") as file:
        header = file.metadata()
    assert (header["targets"], json.loads(header["class-names"])) == (kind, list(COLUMNS[kind]))
    x = read_inputs(files[kind], predictor.inputs)[:5]
    output = predictor.output(x)
    with pytest.warns(DeprecationWarning, match="torch.jit.load"):
        scripted = torch.jit.load(written[1])
    assert torch.equal(scripted(x), output)
    with open(files[kind], newline="") as table:  # client a's rows come first
        rows = [[float(row[name]) for name in COLUMNS[kind]] for row in csv.DictReader(table)][:5]
    assert_said(predictor, x, np.array(rows))


def assert_said(predictor: Predictor, x: torch.Tensor, truth: np.ndarray[Any, Any]) -> None:
    """The lines that a device prints are near the truth."""
    lines = predictor.words(x)
    if predictor.targets == "values":
        said = [[float(value) for value in line.split(",")] for line in lines]
        np.testing.assert_allclose(said, truth, atol=1.5)
    else:
        said = [[float(name in line.split(";")) for name in predictor.names] for line in lines]
        assert np.mean(np.array(said) == truth) > 0.8


def test_company_and_a_stop_in_between_change_nothing(
    files: dict[str, Path], finished: Finished, start: Start
) -> None:
    """Clients side by side with padding, or each alone; stopped halfway, to the last bit."""
    kind = "several"
    first = finished(parse(keys(files, kind)))
    half = start(settings=parse(keys(files, kind, rounds=2)))
    resumed = start(settings=parse(keys(files, kind)), folder=half.path, resume=True)
    assert (resumed.sha, resumed.clients) == (first.sha, first.clients)
    alone = start(settings=parse(keys(files, kind, nodes=4, cohort="loop")))
    for name in ("weight", "bias"):
        one, other = (run.shared(f"output.{name}") for run in (first, alone))
        np.testing.assert_allclose(one, other, atol=1e-12)
    for row, twin in zip(first.clients, alone.clients, strict=True):
        assert float(row["personal_loss"]) == pytest.approx(float(twin["personal_loss"]))


@pytest.mark.parametrize(
    "scheme", [one for one in SCHEMES if one != "fedrod"]
)  # it balances classes
def test_every_scheme_learns_to_predict_values(
    scheme: str, files: dict[str, Path], start: Start
) -> None:
    few = {"rounds": 2, "local-steps": 6, "eval-every": 0}
    settings = parse(keys(files, "values", scheme=scheme, **few))
    task, data = problem(settings).task, problem(settings).data
    tests = [split.test for split in data.clients.values()]
    before = [task.losses(task.initial, data.x[test], data.y[test])[0].mean() for test in tests]
    after = start(settings=settings).summary["personal"]["loss"]["mean"]
    assert after < 0.95 * float(torch.stack(before).mean())


def test_mocha_alone_is_ridge_regression(files: dict[str, Path], start: Start) -> None:
    """λ = 0: the gradient 2 Xᵀ(Xw − y)/n + 2rw is 0, X with a column of ones."""
    own = {"mocha.lambda": 0.0, "mocha.ridge": 0.5, "save-predictors": True, "eval-every": 0}
    often = {"rounds": 4, "local-steps": 200, "batch-size": 6}
    settings = parse(keys(files, "values", scheme="mocha", **own, **often))
    run, data = start(settings=settings), problem(settings).data
    for client, split in data.clients.items():
        x = np.hstack([data.x[split.train].numpy(), np.ones((len(split.train), 1))])
        y = data.y[split.train, 0].numpy()
        best = np.linalg.solve(x.T @ x / len(y) + 0.5 * np.eye(4), x.T @ y / len(y))
        found = [*run.predictor(client, "output.weight")[0], *run.predictor(client, "output.bias")]
        np.testing.assert_allclose(found, best, atol=1e-8)


def test_a_regression_that_explodes_is_stopped(files: dict[str, Path], start: Start) -> None:
    with pytest.raises(RunFailed, match=r"fedavg diverged in round .* Lower lr \(1\.5\)"):
        start(settings=parse(keys(files, "values", scheme="fedavg", lr=1.5, rounds=8)))


def test_nothing_is_said_of_training_data_unless_asked_for(
    files: dict[str, Path], finished: Finished
) -> None:
    run = finished(parse(keys(files, "several")))
    assert "train" not in run.summary
    named = {*run.clients[0], *run.events[-1]["metrics"]}
    assert {name for name in named if name.startswith("train")} == {"train_examples"}


# Elsewhere


def test_a_program_gives_arrays_of_values(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(2, 20, 3))
    held = {"a": (x[0], x[0] @ [1.0, 2.0, 3.0]), "b": (x[1], x[1] @ [3.0, 2.0, 1.0])}
    told: dict[str, Any] = {"data.labels": "values", "model.name": "linear", "lr": 0.05}
    run = bouquet.simulate(
        "apfl", data=held, rounds=3, out=tmp_path / "run", progress=False, **told
    )
    assert run.summary["personal"]["r2"]["mean"] > 0.5
    assert run.model_of("a")(torch.ones(1, 3)).shape == (1, 1)


def test_describe_tells_how_values_and_labels_are_spread(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for kind in COLUMNS:
        describe(problem(parse(keys(files, kind))).data)
        said[kind] = capsys.readouterr().out
    assert "height: 0 ± 0" in said["values"]
    assert "values to predict: height." in said["values"]
    assert "labels, any of them an example's: sea, forest, city." in said["several"]
    assert "heterogeneity" not in said["several"]


def test_newcomers_without_a_number_get_a_dash() -> None:
    nobody: dict[str, Any] = {"loss": {"mean": 1.0}}
    late = {"clients": ["z"], "joined": 3, "adaptation": [], "shared": nobody, "personal": nobody}
    others = {"personal": {"r2": {"mean": 0.5}}}
    summary: dict[str, Any] = {
        "scheme": "apfl",
        "metric": {"name": "r2", "lower_is_better": False},
        "personal": {"r2": {"mean": 0.5}},
        "newcomers": late | {"others": others},
    }
    assert newcomers(summary).endswith("shared r2 –, personal –; the others' personal 0.5000")


def test_nodes_that_predict_different_things_disagree() -> None:
    one, other = Facts((3,), 1, None), Facts((3,), 1, None, targets="values")
    assert one.differs(other) == "what is predicted: classes and values"


class Line(nn.Module):
    """A user's own regression."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = self.line(x)
        return said


def test_a_flower_app_predicts_values() -> None:
    def held(context: Any) -> tuple[Any, Any, Any, Any]:
        x = np.random.default_rng(int(context.node_config["partition-id"])).normal(size=(12, 2))
        y = x @ [3.0, -2.0] + 1
        return x[:8], y[:8], x[8:], y[8:]

    strategy = PersonalizedStrategy("apfl", metric="r2", local_steps=10, eval_every=1)
    with nodes(client_app(Line, held, targets="values")) as grid:
        result = strategy.start(grid, ArrayRecord(Line().state_dict()), num_rounds=4)
    course = [one["personal_r2"] for one in result.evaluate_metrics_clientapp.values()]
    assert cast(float, course[0]) < cast(float, course[-1])
    assert cast(float, course[-1]) > 0.9


def test_a_flower_app_must_be_told_right_what_it_predicts() -> None:
    with pytest.raises(BadInput, match=r"^targets must be 'classes', .* not 'numbers'"):
        client_app(Line, {}, targets="numbers")
