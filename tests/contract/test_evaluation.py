"""What is reported of a model is what the model does."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from bouquet.core.batches import Plan, draw, gather, steps
from bouquet.core.errors import BadInput
from bouquet.core.trees import pick
from bouquet.engines import simulate
from bouquet.problem import problem
from bouquet.server_app.main import Job
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder
from tests import zoo
from tests.conftest import WORKING, Run, kebab

Start = Callable[..., Run]
Finished = Callable[[Settings], Run]
every_model = pytest.mark.parametrize("model", list(zoo.ZOO))
# Every scheme with a model that draws and one that keeps statistics, and the others in turn.
OTHERS = [name for name in zoo.ZOO if name not in ("Dropout", "BatchNorm")]
PAIRS = [
    (scheme, model)
    for place, scheme in enumerate(one for one in WORKING if one != "mocha")  # which is linear
    for model in ("Dropout", "BatchNorm", OTHERS[place % len(OTHERS)])
]
# Torch would rather have its LSTM batched by hand.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

SIZES = {"ann": 10, "bob": 30, "cem": 17, "dee": 24}
CLASSES = 3


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four clients of unequal size: numbers to read, and words."""
    rng = np.random.default_rng(0)
    places = {kind: tmp_path_factory.mktemp(kind) for kind in ("numbers", "words")}
    centres = rng.normal(size=(CLASSES, 6))
    for client, size in SIZES.items():
        y = rng.integers(CLASSES, size=size)
        x = centres[y] + rng.normal(size=(size, 6)) + rng.normal(size=6)
        words = (4 * y[:, None] + rng.integers(6, size=(size, 5))) % zoo.WORDS
        for kind, inputs in (("numbers", x), ("words", words)):
            (places[kind] / client).mkdir()
            np.savez(places[kind] / client / "all.npz", x=inputs, y=y)
    return places


def configured(examples: dict[str, Path], model: str, **keys: Any) -> Settings:
    kind = "words" if getattr(zoo, model) in zoo.READS_WORDS else "numbers"
    chosen = {
        "rounds": 2,
        "local_steps": 3,
        "batch_size": 4,
        "nodes": 2,
        "lr": 0.2,
        "save_predictors": True,
        "fedala": {"share": 1.0},  # no batch of one example, which batch norm cannot learn from
        "data": {"name": "folder", "path": str(examples[kind]), "test_fraction": 0.4},
        "model": {"name": f"tests.zoo:{model}"},
    }
    return parse(kebab(chosen | keys))


@pytest.mark.parametrize(("scheme", "model"), PAIRS)
def test_reports_say_what_the_saved_model_does_in_plain_pytorch(
    scheme: str, model: str, examples: dict[str, Path], finished: Finished
) -> None:
    settings = configured(examples, model, scheme=scheme)
    run = finished(settings)
    data = problem(settings).data
    server = {name.removeprefix("w/"): v for name, v in run.server().items()}
    for row in run.clients:
        test = data.clients[row["client"]].test
        x, y = data.x[test], data.y[test]
        weights = load_file(run.path / "predictors" / f"{row['client']}.safetensors")
        assert_judged(row, "personal", model, weights, x, y)
        if server.keys() == weights.keys():
            shared = {name: torch.from_numpy(value) for name, value in server.items()}
            assert_judged(row, "shared", model, shared, x, y)


def test_reports_of_a_model_without_running_statistics_are_those_of_the_test_batch(
    examples: dict[str, Path], finished: Finished
) -> None:
    settings = configured(examples, "Untracked", scheme="fedavg")
    run = finished(settings)
    data = problem(settings).data
    for row in run.clients:
        test = data.clients[row["client"]].test
        weights = load_file(run.path / "predictors" / f"{row['client']}.safetensors")
        assert_judged(row, "personal", "Untracked", weights, data.x[test], data.y[test])


def assert_judged(
    row: dict[str, str], whose: str, model: str, weights: dict[str, Tensor], x: Tensor, y: Tensor
) -> None:
    module = getattr(zoo, model)(tuple(x.shape[1:]), CLASSES)
    module.load_state_dict(weights)
    module.eval()
    with torch.no_grad():
        scores = module(x)
    right = (scores.argmax(dim=1) == y).float().mean()
    assert float(row[f"{whose}_accuracy"]) == pytest.approx(float(right), abs=1e-6)
    loss = float(cross_entropy(scores, y))
    assert float(row[f"{whose}_loss"]) == pytest.approx(loss, rel=1e-4, abs=1e-6)


@every_model
@pytest.mark.parametrize("scheme", ["apfl", "perfedavg", "finetune"])
def test_a_seed_decides_every_number_on_any_nodes_in_any_company(
    scheme: str, model: str, examples: dict[str, Path], start: Start, finished: Finished
) -> None:
    """Two clients a node, each alone, all four side by side, in chunks of one: the same end."""
    keys = {"scheme": scheme, "dtype": "float64", "batch_size": 12}  # more than some have
    first = finished(configured(examples, model, **keys))
    again = start(settings=configured(examples, model, **keys))
    assert (first.sha, first.clients) == (again.sha, again.clients)
    for company in ({"nodes": 4}, {"nodes": 1}, {"nodes": 1, "cohort_chunk": 1}):
        other = finished(configured(examples, model, **keys | company))
        for client in SIZES:
            for name in load_file(first.path / "predictors" / f"{client}.safetensors"):
                one, twin = first.predictor(client, name), other.predictor(client, name)
                np.testing.assert_allclose(one, twin, atol=1e-11)


def test_a_seed_decides_dropout_and_statistics_on_ray_too(
    examples: dict[str, Path], finished: Finished, tmp_path: Path
) -> None:
    chosen = [
        configured(examples, model, scheme=scheme)
        for model, scheme in (("Dropout", "apfl"), ("BatchNorm", "apfl"), ("BatchNorm", "fedbn"))
    ]
    folders = [tmp_path / str(place) for place in range(len(chosen))]
    simulate([Job(s, RunFolder(f)) for s, f in zip(chosen, folders, strict=True)], "ray")
    for settings, folder in zip(chosen, folders, strict=True):
        inline, ray = finished(settings), Run(folder)
        assert (inline.sha, inline.clients) == (ray.sha, ray.clients)


@pytest.mark.parametrize("scheme", [name for name in WORKING if name != "centralized"])
def test_a_point_of_a_curve_is_what_a_run_that_ends_there_reports(
    scheme: str, start: Start
) -> None:
    """The models after the round, over all clients, also where few are sampled."""
    keys: dict[str, Any] = {
        "scheme": scheme,
        "clients_per_round": 0 if scheme == "dfedu" else 2,
        "local_steps": 2,
        "nodes": 2,
        "data": {"clients": 4, "partition": "dirichlet"},
        "model": {"name": "linear"},
    }
    curve = start(rounds=4, eval_every=2, **keys)
    assert [bool(event["metrics"]) for event in curve.events] == [False, True, False, True]
    ended = start(rounds=2, eval_every=0, **keys)
    for whose in ("shared", "personal"):
        for what in ("accuracy", "loss"):
            point = curve.events[1]["metrics"][f"{whose}_{what}"]
            assert point == ended.summary[whose][what]["mean"]


@pytest.mark.parametrize("chosen", [{"seed": 1}, {"number": 2}, {"client": "bob"}])
def test_draws_differ_by_seed_client_round_and_step(
    chosen: dict[str, Any], examples: dict[str, Path]
) -> None:
    def masks(seed: int = 0, client: str = "ann", number: int = 1) -> list[int]:
        plan = Plan(3, 0, 4, chance=True)
        drawn = draw([client], [torch.arange(9)], plan, (seed, "train", number), torch.float32)
        return drawn.chance[0].tolist()

    assert len(set(masks())) == 3
    assert not set(masks()) & set(masks(**chosen))
    assert masks() == masks()


def test_dropout_drops_while_a_model_learns_and_rests_when_it_is_judged(
    examples: dict[str, Path],
) -> None:
    """The loss a step is taken on has the step's draws; another step has others."""
    settings = configured(examples, "Dropout")
    loaded = problem(settings)
    task, data = loaded.task, loaded.data
    plan = Plan(2, 0, 0, chance=True)
    drawn = draw(["bob"], [data.clients["bob"].train], plan, (0, "train", 1), torch.float32)
    one, two = steps(pick(gather(data.x, data.y, drawn), 0))
    learning = [float(task.loss(task.initial, batch)) for batch in (one, one, two)]
    judged = float(task.losses(task.initial, one.x, one.y)[0].mean())
    assert learning[0] == learning[1] != learning[2]
    assert judged not in learning


@pytest.mark.parametrize(
    ("model", "draws", "whole"),
    [
        ("Plain", False, False),
        ("Dropout", True, True),
        ("Lstm", True, True),
        ("Attention", True, True),
        ("Noisy", True, True),
        ("BatchNorm", False, True),
        ("Untracked", False, True),
        ("Centred", False, True),
    ],
)
def test_what_a_model_needs_is_found_out(
    model: str, draws: bool, whole: bool, examples: dict[str, Path]
) -> None:
    task = problem(configured(examples, model)).task
    assert (task.draws, task.whole) == (draws, whole)


def test_batch_statistics_behind_a_zero_are_found_out(examples: dict[str, Path]) -> None:
    keys = {"name": "folder", "path": str(examples["numbers"]), "test_fraction": 0.4}
    settings = parse(kebab({"data": keys, "model": {"name": "tests.zoo:Quiet"}, "batch_size": 0}))
    assert problem(settings).task.whole


def test_a_model_that_needs_whole_batches_cannot_be_told_to_pad(examples: dict[str, Path]) -> None:
    with pytest.raises(BadInput, match=r"cohort must be 'auto' or 'loop'.*not 'vmap'"):
        problem(configured(examples, "Dropout", cohort="vmap"))


def test_batch_statistics_of_one_example_are_refused_with_the_client(
    examples: dict[str, Path],
) -> None:
    with pytest.raises(BadInput, match=r"client ann .*batch-size 1.* just one"):
        problem(configured(examples, "BatchNorm", batch_size=1))


@pytest.mark.parametrize(("steps", "epochs"), [(3, 0), (0, 3)])
def test_an_example_that_would_be_a_batch_joins_the_one_before_it(steps: int, epochs: int) -> None:
    """Of 7, batches of 3 leave one over; each pass has all of them, and the last batch 4."""
    plan = Plan(steps, epochs, 3, paired=True)
    drawn = draw(["ann"], [torch.arange(7)], plan, (0, "train", 1), torch.float32)
    sizes = (drawn.weight > 0).sum(dim=2).flatten().tolist()
    assert sizes == [3, 4, 3] if steps else [3, 4] * 3
    first = drawn.own[0, :2][drawn.weight[0, :2] > 0]
    assert sorted(first.tolist()) == list(range(7))
    even = Plan(3, 0, 3, paired=True)
    some = draw(["ann"], [torch.arange(8)], even, (0, "train", 1), torch.float32)
    usual = draw(["ann"], [torch.arange(8)], Plan(3, 0, 3), (0, "train", 1), torch.float32)
    assert torch.equal(some.own, usual.own)


def test_a_client_with_one_example_over_trains_batch_norm(
    examples: dict[str, Path], finished: Finished
) -> None:
    """Ann trains on 6 examples: batches of 5 leave one over."""
    settings = configured(examples, "BatchNorm", batch_size=5, scheme="fedavg")
    assert len(problem(settings).data.clients["ann"].train) == 6
    assert finished(settings).summary["failures"] == 0
    keys = {"scheme": "fedala", "fedala": {"share": 0.1}}  # Ann looks through one
    with pytest.raises(BadInput, match=r"client ann a part it looks through has just one"):
        problem(configured(examples, "BatchNorm", **keys))


@pytest.mark.parametrize(("model", "refused"), [("Untracked", True), ("BatchNorm", False)])
def test_running_statistics_judge_a_single_example(
    model: str, refused: bool, tmp_path: Path
) -> None:
    """A client with 8 examples, of which one is for its test."""
    (tmp_path / "ann").mkdir()
    np.savez(tmp_path / "ann" / "all.npz", x=np.eye(8), y=np.arange(8) % CLASSES)
    keys = {"data": {"name": "folder", "path": str(tmp_path), "test_fraction": 0.12}}
    settings = parse(kebab({**keys, "batch_size": 0, "model": {"name": f"tests.zoo:{model}"}}))
    with pytest.raises(BadInput, match="client ann a test part") if refused else nullcontext():
        assert len(problem(settings).data.clients["ann"].test) == 1
