"""Other people's data, losses and metrics, by path or as objects."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor
from torch.nn import functional

import bouquet
from bouquet.client_app.device import device
from bouquet.client_app.orders import read_order
from bouquet.core.errors import BadInput
from bouquet.core.judging import Metric
from bouquet.core.task import Task
from bouquet.data import DataConfig, FederatedData, load
from bouquet.data.memory import write_clients
from bouquet.engines import simulate, with_nodes
from bouquet.flower import PersonalizedStrategy, client_app, wire
from bouquet.problem import problem
from bouquet.report.page import write_report
from bouquet.server_app.main import Job
from bouquet.settings import parse
from bouquet.storage.events import Event, telling
from bouquet.storage.runfolder import RunFolder
from bouquet.storage.runs import read
from bouquet.watch.views import details, overview
from tests.conftest import Quadratics, Run
from tests.unit.test_flower import CLASSES, QUICK, Net, train
from tests.unit.test_flower import load as in_app
from tests.unit.test_report import event, write_run

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {"rounds": 2, "local_steps": 2, "eval_every": 1, "data": {"clients": 4}}

MINE = """
import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from bouquet.data import FederatedData, Split


def mapping():
    rng = np.random.default_rng(0)
    return {
        name: (rng.normal(size=(20, 5)).astype("float32"), rng.integers(3, size=20))
        for name in ("north", "south", "west")
    }


def triples():
    return ((name, x, y) for name, (x, y) in mapping().items())


def data_sets():
    return {
        name: TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        for name, (x, y) in mapping().items()
    }


def drawn(seed, path):
    told = np.full((8, 1), len(path))
    return {"one": (np.random.default_rng(seed).normal(size=(8, 1)) + told, np.arange(8) % 2)}


def whole(label=1, place=5):
    x, y = torch.zeros(6, 2, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 0, label])
    parts = {"a": Split(torch.arange(2), torch.tensor([2])),
             "b": Split(torch.tensor([3, 4]), torch.tensor([place]))}
    return FederatedData(x, y, parts, classes=3, names=("low", "middle", "high"))


def stranger():
    return whole(label=3)


def astray():
    return whole(place=6)


def nobody():
    return {}


def broken():
    raise KeyError("ward")


def asking(ward):
    return {}


def uneven():
    return {"a": (np.zeros((3, 2)), np.zeros(2))}


def entropy(output, y):
    return -output.log_softmax(dim=1).gather(1, y[:, None]).squeeze(1)


def hits(output, y):
    return output.argmax(dim=1) == y


def brier_score(output, y):
    return (output.softmax(dim=1) - functional.one_hot(y, output.shape[1])).square().sum(dim=1)


brier_score.lower_is_better = True


def mean_score(output, y):
    return brier_score(output, y).mean()


mean_score.lower_is_better = mean_score.whole = True


def listing(output, y):
    return hits(output, y)


listing.whole = True


def branching(output, y):
    found = entropy(output, y)
    return found if float(found.detach().sum()) < 1e9 else 2 * found


def averaged(output, y):
    return entropy(output, y).mean()


def squeezed(output, y):
    return entropy(output, y).squeeze()


def stepwise(output, y):
    return hits(output, y).float()


def centred(output, y):
    return entropy(output, y) - entropy(output, y).mean()


def listed(output, y):
    return entropy(output, y).tolist()


def failing(output, y):
    return output[:, 99]


def loss(output, y):
    return entropy(output, y)


accuracy = loss
constant = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, where all is started."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(name: str, seed: int = 0, **keys: Any) -> FederatedData:
    return load(DataConfig(name=f"./mine.py:{name}", **keys), seed, torch.float32)


# Data


@pytest.mark.parametrize("form", ["mapping", "triples", "data_sets"])
def test_a_functions_data_are_those_of_a_folder_that_holds_them(form: str, mine: Path) -> None:
    place = mine / "written"
    examples = np.random.default_rng(0)
    write_clients(
        {
            name: (examples.normal(size=(20, 5)).astype("float32"), examples.integers(3, size=20))
            for name in ("north", "south", "west")
        },
        place,
    )
    for keys in ({}, {"test_fraction": 0.5}, {"max_clients": 2}):
        found = data(form, **keys)
        expected = load(DataConfig(name="folder", path=str(place), **keys), 0, torch.float32)
        assert torch.equal(found.x, expected.x)
        assert torch.equal(found.y, expected.y)
        assert found.clients.keys() == expected.clients.keys()
        for client, split in found.clients.items():
            assert split.train.tolist() == expected.clients[client].train.tolist()
            assert split.test.tolist() == expected.clients[client].test.tolist()


@pytest.mark.usefixtures("mine")
def test_a_function_is_told_the_seed_and_the_path_if_it_asks() -> None:
    one, again, other = (data("drawn", seed).x for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.allclose(data("drawn", 1, path="here").x, one + 4)


@pytest.mark.usefixtures("mine")
def test_a_function_may_say_who_tests_on_what_and_what_classes_are_called() -> None:
    found = data("whole")
    assert found.names == ("low", "middle", "high")
    assert found.clients["b"].test.tolist() == [5]
    assert found.x.dtype == torch.float32
    assert len(data("whole", max_clients=1).clients) == 1


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("nobody", {}, "must give clients' examples: .* at least one client"),
        ("uneven", {}, "must give clients' examples: .*'a'.* 3 inputs and 2 labels"),
        ("broken", {}, "fails: KeyError: 'ward'"),
        ("asking", {}, "must be called with nothing, or with seed and path: .*'ward'"),
        ("constant", {}, "must name a function, not 3"),
        ("absent", {}, "cannot be imported"),
        ("stranger", {}, "labels below 3"),
        ("astray", {}, "'b' must .* examples from 0 to 5"),
        ("mapping", {"downsample": 0.8}, r"^data\.downsample must be 0 .* not 0\.8"),
    ],
)
def test_data_that_cannot_be_used_are_refused_in_a_sentence(
    name: str, keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        data(name, **keys)


def test_a_function_that_changed_is_called_again(mine: Path) -> None:
    settings = parse({"data.name": "./mine.py:drawn", "model.name": "linear"})
    before = problem(settings).data.x
    assert problem(settings).data.x is before
    (mine / "mine.py").write_text(MINE.replace("len(path)", "len(path) + 1"))
    assert torch.allclose(problem(settings).data.x, before + 1)


@pytest.mark.usefixtures("mine")
def test_a_run_and_its_folder_are_named_after_the_function() -> None:
    run = bouquet.simulate("fedavg", data="./mine.py:mapping", rounds=1, progress=False)
    assert run.folder.name.endswith("-fedavg-mapping")
    assert read(run.folder).data == "mapping"


def test_describe_takes_a_path_as_name_or_as_key(mine: Path) -> None:
    path, words = "./mine.py:mapping", ["-m", "bouquet", "data", "describe"]
    for told in ([path], ["-c", f"data.name={path}"]):
        done = subprocess.run(
            [sys.executable, *words, *told],
            cwd=mine,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "north" in done.stdout, done.stderr


# Losses and metrics


@pytest.mark.usefixtures("mine")
def test_the_usual_loss_and_metric_written_by_hand_give_the_usual_run(
    start: Callable[..., Run],
) -> None:
    usual = start(scheme="apfl", **SMALL)
    own = start(scheme="apfl", loss="./mine.py:entropy", metric="./mine.py:hits", **SMALL)
    for mine_, theirs in zip(own.clients, usual.clients, strict=True):
        for whose in ("shared", "personal"):
            assert mine_[f"{whose}_hits"] == theirs[f"{whose}_accuracy"]
            loss = float(theirs[f"{whose}_loss"])
            assert float(mine_[f"{whose}_loss"]) == pytest.approx(loss, rel=1e-5)
    assert list(own.clients[0])[4:8] == [
        f"{whose}_{what}" for whose in ("shared", "personal") for what in ("hits", "loss")
    ]
    assert own.summary["personal"]["hits"] == usual.summary["personal"]["accuracy"]
    assert own.summary["helped"] == usual.summary["helped"]
    assert own.summary["metric"] == {"name": "hits", "lower_is_better": False}
    assert "metric" not in usual.summary
    assert not any("metric" in event for event in usual.events)


@pytest.mark.usefixtures("mine")
def test_another_loss_trains_another_model(start: Callable[..., Run]) -> None:
    loss = {"loss": "./mine.py:brier_score"}
    assert start(scheme="fedavg", **loss, **SMALL).sha != start(scheme="fedavg", **SMALL).sha


@pytest.mark.usefixtures("mine")
def test_where_less_is_better_the_largest_is_worst_and_a_decrease_helps(
    start: Callable[..., Run],
) -> None:
    run = start(scheme="local", metric="./mine.py:brier_score", **SMALL)
    scores = [
        (float(r["shared_brier-score"]), float(r["personal_brier-score"])) for r in run.clients
    ]
    assert run.summary["helped"] == sum(own < shared for shared, own in scores) > 0
    (row,) = bouquet.Runs((bouquet.load(run.path),), run.path).table().rows
    assert row[-1] == max(own for _, own in scores)
    told = details(read(run.path))
    assert told["measure"] == {"name": "brier-score", "lower_is_better": True}
    assert told["curve"]["personal_brier-score"][-1] == pytest.approx(
        run.summary["personal"]["brier-score"]["mean"]
    )
    for shown, (shared, own) in zip(told["clients"], scores, strict=True):
        assert shown["change"] == pytest.approx(shared - own)
    (line,) = overview({"run": read(run.path)})
    assert line["measure"] == "brier-score"
    assert line["shared_brier-score"] == run.events[-1]["metrics"]["shared_brier-score"]
    words = telling(brief=True)(bouquet.load(run.path).events[-1])
    assert words.startswith("shared brier-score 0.")


@pytest.mark.usefixtures("mine")
def test_a_loss_that_cannot_be_batched_trains_one_by_one(start: Callable[..., Run]) -> None:
    """It looks at its value, which under vmap nobody can."""
    alone = start(scheme="fedavg", loss="./mine.py:branching", nodes=1, **SMALL)
    looped = start(scheme="fedavg", loss="./mine.py:entropy", nodes=1, cohort="loop", **SMALL)
    assert alone.sha == looped.sha


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"loss": "./mine.py:averaged"}, r"a tensor of shape \(2,\) for 2 of them, not \(\)"),
        ({"loss": "./mine.py:squeezed"}, r"a tensor of shape \(1,\) for 1 of them, not \(\)"),
        ({"loss": "./mine.py:listed"}, "a tensor .* not list"),
        ({"loss": "./mine.py:failing"}, r"fails on outputs of shape \(2, 10\) .*IndexError"),
        ({"loss": "./mine.py:stepwise"}, "must be differentiable"),
        ({"loss": "./mine.py:centred"}, "must judge every example by itself"),
        ({"loss": "./mine.py:constant"}, "must name a function, not 3"),
        ({"loss": "./mine.py:absent"}, "^loss .* cannot be imported"),
        ({"loss": "hinge"}, "^loss must be one of 'auto', 'cross-entropy', .* not 'hinge'"),
        (
            {"loss": "mse"},
            "^loss must be 'auto', 'cross-entropy' or your own for classes, not 'mse'",
        ),
        ({"metric": "./mine.py:averaged"}, r"^metric .* shape \(2,\) for 2 of them, not \(\)"),
        ({"metric": "./mine.py:loss"}, "must have a name of its own, .* not 'loss'"),
        ({"metric": "kappa"}, "^metric must be one of 'auto', 'accuracy', .* not 'kappa'"),
        ({"metric": "r2"}, "^metric must be one of 'accuracy', .* your own for classes, not 'r2'"),
        ({"metric": "top-10"}, "^metric must not be 'top-10' for 10 classes: all would be right"),
        ({"metric": "./mine.py:listing"}, "is 'whole' and must give one number for all examples"),
        (
            {"evaluate_on": "train"},
            "^evaluate-on must be one of 'test', 'test,train', .* not 'train'",
        ),
        (
            {"loss": "./mine.py:entropy", "scheme": "mocha", "model": {"name": "linear"}},
            "loss must be 'auto' for mocha",
        ),
        (
            {"pipeline": "fedavg:1 local:1", "stage2": {"metric": "./mine.py:hits"}},
            "metric is the same in all stages",
        ),
        (
            {"pipeline": "fedavg:1 local:1", "stage2": {"evaluate_on": "test,train"}},
            "evaluate-on is the same in all stages",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    keys: dict[str, Any], sentence: str, start: Callable[..., Run], tmp_path: Path
) -> None:
    rounds = {} if "pipeline" in keys else {"rounds": 1}
    with pytest.raises(BadInput, match=sentence):
        start(folder=tmp_path / "out", **rounds, **keys)
    assert not (tmp_path / "out").exists()


def test_cross_entropy_is_refused_where_there_are_no_classes(quadratics: Quadratics) -> None:
    settings = parse(
        {"data.name": "quadratic", "data.path": str(quadratics.path), "loss": "cross-entropy"}
    )
    with pytest.raises(BadInput, match="loss must be 'auto' or your own for data without classes"):
        problem(settings)


def test_what_a_metric_says_of_padding_counts_nothing() -> None:
    """Clients side by side are padded with examples of others, where it may be infinite."""

    def inverse(output: Tensor, y: Tensor) -> Tensor:
        return 1 / y

    task = Task(torch.nn.Identity(), {}, 3, metric=Metric("inverse", of=inverse))
    y, real = torch.tensor([2, 1, 0]), torch.tensor([1.0, 1.0, 0.0])
    _, found = task.score({}, torch.zeros(3, 3), y, real)
    assert float(found) == 0.75


# Where they may come from


def test_a_file_is_named_so_that_any_folder_finds_it(mine: Path) -> None:
    for key in ("data.name", "loss", "metric"):
        assert parse({key: "./mine.py:part"}).flat()[key] == f"{mine / 'mine.py'}:part"


@pytest.mark.usefixtures("mine")
def test_a_run_with_own_parts_goes_on_where_it_stopped(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    parts = {"loss": "./mine.py:entropy", "metric": "./mine.py:hits", "local_steps": 2}
    keys = {"scheme": "apfl", "data": {"name": "./mine.py:mapping"}, **parts}
    whole = start(rounds=3, **keys)
    start(rounds=1, folder=tmp_path / "again", **keys)
    again = start(rounds=3, folder=tmp_path / "again", resume=True, **keys)
    assert again.sha == whole.sha


def test_a_comparison_with_own_parts_goes_on_from_any_folder(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: dict[str, Any] = {"data": "./mine.py:mapping", "metric": "./mine.py:hits"}
    runs = bouquet.compare(["fedavg"], rounds=1, progress=False, **parts)
    assert runs.folder.name.endswith("-compare-mapping")
    (mine / "elsewhere").mkdir()
    folder = runs.folder.absolute()
    monkeypatch.chdir(mine / "elsewhere")
    again = bouquet.compare(["local"], resume=folder, progress=False)
    assert [list(run.summary["personal"]) for run in again] == [["hits", "loss"]] * 2


@pytest.mark.parametrize("key", ["data.name", "loss", "metric", "model.name", "augment"])
def test_a_device_loads_no_part_its_owner_did_not_allow(key: str, tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    config = {"client-id": "north", "state-dir": str(tmp_path)}
    values: dict[str, Any] = {"scheme": "fedavg", key: f"{trap}:part"}
    content = RecordDict({wire.SETTINGS: ConfigRecord(values)})
    with pytest.raises(BadInput, match=rf"^{key} .* is not allowed on the device .*--allow"):
        read_order(Message(content, 1, "train"), device(config))
    assert not (tmp_path / "sprung").exists()
    trusting = device(config | {"allow": f"{trap}:part"})
    assert trusting is not None
    trusting.refuse_strangers(values)


def lifted(output: Tensor, y: Tensor) -> Tensor:
    """A loss of this module's."""
    return functional.cross_entropy(output, y, reduction="none")


def share_right(output: Tensor, y: Tensor) -> Tensor:
    """A metric of this module's."""
    return output.argmax(dim=1) == y


def test_a_program_gives_the_functions_themselves(tmp_path: Path) -> None:
    def clients() -> dict[str, Any]:
        rng = np.random.default_rng(0)
        return {k: (rng.normal(size=(20, 5)), rng.integers(3, size=20)) for k in "ab"}

    keys: dict[str, Any] = {"rounds": 1, "progress": False}
    named = bouquet.simulate(
        data=clients, loss=lifted, metric=share_right, out=tmp_path / "named", **keys
    )
    usual = bouquet.simulate(data=clients(), out=tmp_path / "usual", **keys)
    assert named.summary["shared_sha256"] == usual.summary["shared_sha256"]
    own = named.summary["personal"]["share-right"]
    assert own == usual.summary["personal"]["accuracy"]
    assert repr(named) == repr(usual).replace("usual", "named")
    with pytest.raises(BadInput, match=r"^data is an object of this program"):
        bouquet.simulate(data=clients, engine="ray", **keys)
    with pytest.raises(BadInput, match=r"^metric is an object of this program"):
        bouquet.simulate(metric=lambda output, y: y, engine="ray", **keys)


def test_functions_of_a_program_alone_are_not_written_down_in_a_comparison(tmp_path: Path) -> None:
    runs = bouquet.compare(
        ["fedavg"], metric=lambda output, y: y, out=tmp_path / "all", rounds=1, progress=False
    )
    assert [path.name for path in runs.folder.iterdir()] == ["fedavg"]


def test_a_flower_app_follows_only_the_judges_it_brings() -> None:
    strategy = PersonalizedStrategy("fedavg", loss=lifted, metric=share_right, **QUICK)
    with pytest.raises(bouquet.BadInput, match=r"^loss .* is not one of this app's"):
        train(strategy)
    app = client_app(Net, in_app, classes=CLASSES, judges=[lifted, share_right])
    (own,) = train(strategy, app, rounds=1).evaluate_metrics_clientapp.values()
    (usual,) = train(
        PersonalizedStrategy("fedavg", **QUICK), rounds=1
    ).evaluate_metrics_clientapp.values()
    assert own["personal_share-right"] == usual["personal_accuracy"]
    assert own["personal_loss"] == usual["personal_loss"]


# What is made of them


@pytest.mark.usefixtures("mine")
def test_a_report_compares_and_judges_by_the_metric(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(scheme="local", metric="./mine.py:brier_score", save_outcomes=True, **SMALL)
    files = write_report([run.path], tmp_path / "page.html")
    names = {path.name for path in files}
    assert {"page-brier-score.png", "page-loss.png", "page-change-brier-score.png"} <= names
    page = (tmp_path / "page.html").read_text()
    assert "local, by the brier-score of each example" in page
    assert "4 helped and 0 hurt" in page
    assert "Mean decrease in brier-score +" in page
    header, row = (tmp_path / "page-comparison.csv").read_text().splitlines()
    told = dict(zip(header.split(","), row.split(","), strict=True))
    own = run.summary["personal"]["brier-score"]
    assert float(told["personal_brier-score"]) == own["mean"]
    assert float(told["worst_brier-score"]) == own["max"]


def test_a_line_that_says_nonsense_of_its_metric_is_read_as_usual(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for said in ("brier", {"name": 3}, None):
        (run / "events.jsonl").write_text(event(1, metric=said) + "\n")
        assert len(read(run).events) == 1
        assert read(run).measure.name == "accuracy"


# Files that are edited while a run lasts


@pytest.mark.parametrize(
    "keys",
    [
        {"model.name": "./part.py:Part"},
        {"scheme": "./part.py:Scheme"},
        {"loss": "./part.py:loss"},
        {"augment": "./part.py:augment"},
        {"data.name": "./part.py:data"},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_a_file_edited_during_a_run_is_for_the_next(keys: dict[str, str], mine: Path) -> None:
    """Somebody prepares the next experiment while this one runs."""
    part, values = mine / "part.py", {"rounds": 3, "local-steps": 2, "data.clients": 4} | keys

    def written(factor: float) -> None:
        part.write_text(PARTS.format(factor=factor))

    def ended(edit: Callable[[], None] = lambda: None) -> object:
        folder = RunFolder(mine / str(len(list(mine.iterdir()))))
        observe = functools.partial(_in_round_one, edit)
        job = Job(with_nodes(parse(values)), folder, observe=observe)
        return simulate([job], "inline")[0]["shared_sha256"]

    written(1)
    undisturbed = ended()
    assert ended(lambda: written(0.5)) == undisturbed
    assert ended() != undisturbed


def _in_round_one(edit: Callable[[], None], event: Event) -> None:
    if event["round"] == 1:
        edit()


PARTS = """
import numpy as np
from torch import nn
from torch.nn import functional

from bouquet.strategies.fedavg import FedAvg

FACTOR = {factor}


class Part(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

    def forward(self, x):
        return super().forward(FACTOR * x)


class Scheme(FedAvg):
    name = "scaled"

    def local_update(self, work, payload, personal):
        upload, personal = super().local_update(work, payload, personal)
        return upload._replace(w={{n: FACTOR * v for n, v in upload.w.items()}}), personal


def loss(output, y):
    return FACTOR * functional.cross_entropy(output, y, reduction="none")


def augment(x, draws):
    return FACTOR * x


def data():
    rng = np.random.default_rng(0)
    return {{n: (FACTOR * rng.normal(size=(20, 5)), rng.integers(3, size=20)) for n in "abcd"}}
"""
