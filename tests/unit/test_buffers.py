"""Batch norm and other buffers: what follows training, what is averaged, kept and left alone."""

import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bouquet import BadInput
from bouquet.client_app.predictor import export
from bouquet.core.batches import Plan, draw, gather, steps
from bouquet.core.descent import Sgd
from bouquet.core.round import play, row_of
from bouquet.core.scheme import Federation, Member, Model, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import (
    Nothing,
    Tree,
    add,
    distance,
    dot,
    flatten,
    half_square,
    is_statistic,
    mix,
    norm,
    pick,
    plain,
    toward,
)
from bouquet.laboratory import Laboratory
from bouquet.models import buffers_of, build, named_splits, offers, personal_names
from bouquet.problem import Problem, problem
from bouquet.rebuild import predictor_of, shared_model
from bouquet.settings import Settings, parse
from bouquet.strategies import SCHEMES, fedsim
from bouquet.strategies.apfl import APFL, Personal
from bouquet.strategies.fedavg import FedAvg
from bouquet.strategies.fedbn import FedBN
from bouquet.strategies.local import Local
from bouquet.testing import LAWS
from tests import zoo
from tests.conftest import Run, kebab

Start = Callable[..., Run]
GUIDE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As nodes compute; a second thread for such small models only costs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def configured(model: str = "tests.zoo:Folded", **keys: Any) -> Settings:
    small = {
        "rounds": 2,
        "local_steps": 3,
        "batch_size": 8,
        "nodes": 2,
        "data": {"clients": 3, "partition": "iid"},
        "model": {"name": model},
    }
    return parse(kebab(small | keys))


def work_of(loaded: Problem, client: str, sgd: Sgd, count: int) -> Work:
    """A client's batches of 8, 8, 5, 8, ... examples."""
    own = loaded.data.clients[client].train[:21]
    drawn = draw([client], [own], Plan(count, 0, 8), (0, "train", 1), loaded.data.x.dtype)
    batches = steps(pick(gather(loaded.data.x, loaded.data.y, drawn), 0))
    return Work(loaded.task, sgd, [batch.whole() for batch in batches], steps=count)


def plain_model(settings: Settings, loaded: Problem) -> nn.Module:
    """The same model in plain PyTorch, from the same start."""
    shape, classes = tuple(loaded.data.x.shape[1:]), loaded.data.classes
    module = build(settings.model, shape, classes, 0, settings.dtype)
    module.load_state_dict(loaded.task.state_dict(loaded.task.initial), strict=True)
    return module.train()


def plainly_trained(module: nn.Module, batches: Sequence[Batch], lr: float) -> dict[str, Tensor]:
    """A training loop as anybody writes it."""
    optimizer = torch.optim.SGD(module.parameters(), lr)
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(module(batch.x), batch.y).backward()
        optimizer.step()
    return module.state_dict()


def assert_same_state(found: Tree, expected: dict[str, Tensor], rounding: float) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=rounding, atol=rounding)


# A client trained alone by plain PyTorch has the same weights and statistics


@pytest.mark.parametrize("model", ["Folded", "Cumulative", "Centred", "BatchNorm"])
def test_a_client_learns_what_a_plain_loop_learns(model: str) -> None:
    settings = configured(f"tests.zoo:{model}", dtype="float64")
    loaded = problem(settings)
    work, task = work_of(loaded, "000", Sgd(0.1), 7), loaded.task
    module = plain_model(settings, loaded)
    upload, _ = FedAvg().local_update(work, Model(task.initial), Nothing())
    expected = plainly_trained(module, work.batches, 0.1)
    assert_same_state(task.state_dict(upload.w), expected, 1e-12)
    x = loaded.data.x[:5]
    with torch.no_grad():
        torch.testing.assert_close(task.output(upload.w, x), module.eval()(x), rtol=0, atol=1e-12)


@pytest.fixture
def stock(tmp_path: Path) -> str:
    """Torchvision's ResNet-18, batch norm and in-place ReLU and all, as the guide has it."""
    (code,) = re.findall(r"^```py\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    (tmp_path / "stock.py").write_text(code)
    return f"{tmp_path / 'stock.py'}:net"


def test_torchvisions_resnet_learns_what_a_plain_loop_learns(stock: str) -> None:
    settings = configured(stock)
    loaded = problem(settings)
    assert len(loaded.task.statistics) == 20 * 3
    work = work_of(loaded, "000", Sgd(0.01), 2)
    module = plain_model(settings, loaded)
    upload, _ = FedAvg().local_update(work, Model(loaded.task.initial), Nothing())
    expected = plainly_trained(module, work.batches, 0.01)
    assert_same_state(loaded.task.state_dict(upload.w), expected, 1e-4)


def test_frozen_statistics_are_used_in_training_and_never_change() -> None:
    """As in a loop that puts batch norm into evaluation mode."""
    settings = configured(dtype="float64", statistics="frozen")
    loaded = problem(settings)
    seen = {f"norm.{n}~": 1 + torch.rand(3).double() for n in ("running_mean", "running_var")}
    loaded = replace(loaded, task=loaded.task.starting_from(seen))
    task, work = loaded.task, work_of(loaded, "000", Sgd(0.1), 4)
    module = plain_model(settings, loaded)
    module.get_submodule("norm").eval()
    upload, _ = FedAvg().local_update(work, Model(task.initial), Nothing())
    expected = plainly_trained(module, work.batches, 0.1)
    assert_same_state(task.state_dict(upload.w), expected, 1e-12)
    assert torch.equal(expected["norm.running_var"], seen["norm.running_var~"])
    assert not any(map(is_statistic, upload.w))


# Steps derived by hand


def test_arithmetic_on_trees_leaves_statistics_alone() -> None:
    """Inner products, distances and sums are those of the weights; no step goes beyond a mean."""
    one, other = ({"w": torch.tensor(x), "r~": torch.tensor(x)} for x in (3.0, 1.0))
    assert (float(dot(one, other)), float(half_square(one, other))) == (3.0, 2.0)
    assert (float(norm(one)), float(distance(one, other))) == (3.0, 2.0)
    assert add(one, {"w": torch.tensor(1.0)}) == {"w": 4.0, "r~": 3.0}
    assert toward(one, other, 2.0) == {"w": -1.0, "r~": 1.0}
    assert mix(one, other, 0.5) == {"w": 2.0, "r~": 2.0}


class Line(nn.Module):
    """The output is γ x̂ + β + b, with x̂ the normalized input."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(()))
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.norm(x) + self.b
        return said


def line(split: str = "none") -> Task:
    """A loss that is linear in the output: y times it."""
    module = Line().double()
    statistics, _ = buffers_of(module, (1,), torch.float64)
    initial = {name: value.detach() for name, value in module.named_parameters()} | statistics
    return Task(
        module,
        initial,
        classes=1,
        personal=personal_names(list(initial), split, named_splits(module)),
        whole=True,
        criterion=lambda output, y: output[:, 0] * y,
    )


def batch_of(x: list[float], y: list[float]) -> Batch:
    inputs, targets = torch.tensor(x).double().unsqueeze(1), torch.tensor(y).double()
    return Batch(inputs, targets, torch.full_like(targets, 1 / len(x)), torch.ones(()).double())


def numbers(tree: Tree) -> dict[str, float]:
    return {plain(name).removeprefix("norm."): float(value) for name, value in tree.items()}


STEP = batch_of([0.0, 2.0], [1.0, 3.0])
MEAN, VAR, COUNT = (f"norm.{n}~" for n in ("running_mean", "running_var", "num_batches_tracked"))


def test_fedbn_averages_all_but_batch_norm() -> None:
    """The batch 0, 2 has mean 1 and variance 1, or 2 unbiased, which is what torch keeps.

    The loss, the mean of y times output over y = 1, 3, is s γ + 2 β + 2 b with s = 1 / √(1 + ε): a
    step of 0.1 takes 0.1 s from γ and 0.2 from β and from b. With momentum 0.1 the running
    mean becomes 0.1 · 1 and the variance 0.9 · 1 + 0.1 · 2.
    """
    task = line("batch-norm")
    scheme, work = FedBN(), Work(task, Sgd(0.1), [STEP])
    upload, kept = scheme.local_update(
        work, scheme.downlink(scheme.init_server(task), ["000"]), scheme.init_personal(task, 2)
    )
    assert numbers(upload.w) == {"b": pytest.approx(-0.2)}
    assert numbers(kept.v) == {
        "weight": pytest.approx(1 - 0.1 / (1 + 1e-5) ** 0.5),
        "bias": pytest.approx(-0.2),
        "running_mean": pytest.approx(0.1),
        "running_var": pytest.approx(1.1),
        "num_batches_tracked": 1,
    }


def test_fedavg_averages_statistics_as_it_averages_weights() -> None:
    """The batch 4, 8 has mean 6 and unbiased variance 8: 0.6 and 1.7 beside 0.1 and 1.1.

    By weights of 1 and 3, the means are (0.1 + 1.8) / 4 and (1.1 + 5.1) / 4.
    """
    task, other = line(), batch_of([4.0, 8.0], [1.0, 1.0])
    federation = Federation({"a": Member(1, 1.0), "b": Member(3, 3.0)}, lr=0.1, steps=1)
    works = {"a": Work(task, Sgd(0.1), [STEP]), "b": Work(task, Sgd(0.1), [other])}
    nothing = {"a": Nothing(), "b": Nothing()}
    server, _ = play(FedAvg(), Model(task.initial), federation, works, nothing)
    assert float(server.w[MEAN]) == pytest.approx(0.475)
    assert float(server.w[VAR]) == pytest.approx(1.55)


def test_a_mixtures_statistics_are_mixed_and_what_a_batch_makes_of_them_is_kept() -> None:
    """With α = ¼, v's (2, 3) and w's (0, 1) are mixed to (½, 1½).

    The batch's (1, 2) brings that to (0.55, 1.55), which v then has, and w's own to (0.1, 1.1).
    The weights of v and w are equal, so α, whose slope is ⟨v − w, ∇f⟩, stays where it is.
    """
    task = line()
    v = task.initial | {MEAN: torch.tensor([2.0]).double(), VAR: torch.tensor([3.0]).double()}
    alpha = torch.tensor(0.25).double()
    upload, kept = APFL().local_update(
        Work(task, Sgd(0.1), [STEP]), Model(task.initial), Personal(v, alpha)
    )
    assert (float(kept.v[MEAN]), float(kept.v[VAR])) == pytest.approx((0.55, 1.55))
    assert (float(upload.w[MEAN]), float(upload.w[VAR])) == pytest.approx((0.1, 1.1))
    assert torch.equal(kept.alpha, alpha)


@pytest.mark.parametrize("losses", [1, 3])
def test_statistics_are_those_of_the_batch_however_losses_are_weighed(losses: int) -> None:
    """A scheme may take the sum or the mean of several losses, or a multiple of one."""
    task = line()
    work = Work(task, Sgd(0.1), [STEP])
    w = work.descend(
        lambda w, batch: 7 * sum(task.loss(w, batch) for _ in range(losses)),  # type: ignore[arg-type, return-value]
        task.initial,
        [STEP],
    )
    assert numbers({name: w[name] for name in task.statistics}) == {
        "running_mean": pytest.approx(0.1),
        "running_var": pytest.approx(1.1),
        "num_batches_tracked": 1,
    }


def test_statistics_alone_can_be_tuned() -> None:
    """Adapting batch norm to a client and nothing else: there is no gradient to follow."""
    task = line("norm.running_* norm.num*")
    parts = fedsim.split(task, task.initial)
    moved = fedsim.tuned(Work(task, Sgd(0.1), [STEP, STEP]), parts, [STEP, STEP])
    assert numbers(moved) == {
        "running_mean": pytest.approx(0.19),
        "running_var": pytest.approx(1.19),
        "num_batches_tracked": 2,
    }


def test_apfls_ends_are_local_and_fedavg_with_statistics_too() -> None:
    loaded = problem(configured())
    task, work = loaded.task, work_of(loaded, "000", Sgd(0.1), 5)
    _, alone = Local().local_update(work, Nothing(), Model(task.initial))
    shared, _ = FedAvg().local_update(work, Model(task.initial), Nothing())
    for alpha, expected in ((1.0, alone.w), (0.0, shared.w)):
        scheme = APFL(alpha=alpha, adaptive=False)
        received = Model(task.initial)
        upload, kept = scheme.local_update(work, received, scheme.init_personal(task, 21))
        found = scheme.predictor(work, upload, kept)
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_fedbn_without_batch_norm_is_fedavg(start: Start) -> None:
    keys: dict[str, Any] = {"rounds": 2, "data": {"clients": 4}, "model": {"hidden": 8}}
    run, plain_ = (start(scheme=scheme, **keys) for scheme in ("fedbn", "fedavg"))
    assert (run.sha, run.summary["personal"]) == (plain_.sha, plain_.summary["personal"])


# What holds for every scheme

WILD: dict[str, dict[str, Any]] = {
    **{name: {"scheme": name} for name in SCHEMES if name != "mocha"},  # its models are linear
    "apfl, averaged": {"scheme": "apfl", "apfl": {"output": "average"}},
    "plsgd, II": {"scheme": "plsgd", "plsgd": {"output": "mean-shared", "beta": 3.0}},
    "plsgd, III": {"scheme": "plsgd", "plsgd": {"output": "mean-own", "beta": 0.0}},
    "pfedme, beyond": {"scheme": "pfedme", "pfedme": {"beta": 3.0}},
    "scaffold, beyond": {"scheme": "scaffold", "scaffold": {"server_lr": 3.0}},
    "fedu, beyond": {"scheme": "fedu", "fedu": {"eta": 1e4}},
    "mean, beyond": {"scheme": "fedavg", "server_lr": 3.0},
    "adam": {"scheme": "fedavg", "server_optimizer": "adam", "server_lr": 1.0},
    "momentum": {"scheme": "fedavg", "server_optimizer": "momentum"},
    "agnostic": {"scheme": "apfl", "weights": "agnostic"},
    "personal": {"scheme": "fedsim", "statistics": "personal", "personal": {"split": "none"}},
    "free": {"scheme": "perfedavg", "perfedavg": {"mode": "hessian-free"}},
    "first": {"scheme": "perfedavg", "perfedavg": {"mode": "first-order"}},
}


def played(
    settings: Settings, loaded: Problem, sgd: Sgd, scales: Sequence[float] = (1.0, 1.0)
) -> tuple[Tree, Tree]:
    """Two clients' rounds in memory: all that server and clients hold, and the clients' models."""
    scheme, task = settings.scheme, loaded.task
    ids = ["000", "001"]
    federation = Federation({one: Member(21) for one in ids}, "Folded", 0.1, 3)
    works = {}
    for one, scale in zip(ids, scales, strict=True):
        work = work_of(loaded, one, sgd, scheme.draws(3))
        scaled = [batch._replace(x=scale * batch.x) for batch in work.batches]
        works[one] = replace(work, batches=scaled, steps=3, data=scaled)
    server = scheme.welcome(scheme.init_server(task), federation)
    kept: dict[str, Any] = {one: scheme.init_personal(task, 21) for one in ids}
    for number in (1, 2, 3):
        server, kept = play(scheme, server, federation, works, kept, number)
    received = scheme.downlink(server, ids)
    held, models = flatten(server), dict[str, Tensor]()
    for place, one in enumerate(ids):
        held |= {f"{one}/{name}": value for name, value in flatten(kept[one]).items()}
        own = scheme.predictor(works[one], row_of(scheme, received, place), kept[one])
        models |= {f"{one}/{name}": value for name, value in own.items()}
    return held, models


# IFCA's clients choose among models as they are judged, by their statistics too.
@pytest.mark.parametrize("case", [one for one in WILD if one != "ifca"])
def test_statistics_move_no_weight(case: str) -> None:
    """Not by decay, clipping, a proximal term, a control variate or a second derivative."""
    settings = configured(**WILD[case], weight_decay=0.1)
    loaded, sgd = problem(settings), Sgd(0.05, clip=0.5, clip_all=True, decoupled_decay=0.1)
    assert loaded.task.statistics
    others = {name: loaded.task.initial[name] * 3 + 2 for name in loaded.task.statistics}
    elsewhere = replace(loaded, task=loaded.task.starting_from(others))
    (held, own), (twin, other) = (played(settings, one, sgd) for one in (loaded, elsewhere))
    moved = [name for name, value in own.items() if not value.equal(other[name])]
    assert moved  # else nothing was tried
    assert all(map(is_statistic, moved))
    assert all(value.equal(twin[name]) for name, value in held.items() if not is_statistic(name))


@pytest.mark.parametrize("case", list(WILD))
def test_no_scheme_makes_a_variance_negative(case: str) -> None:
    """One client's inputs are 10,000 times another's, and servers go far beyond the mean."""
    settings = configured(**WILD[case])
    held, models = played(settings, problem(settings), Sgd(1e-4), scales=(0.01, 100.0))
    found = [value for name, value in models.items() if name.endswith("running_var~")]
    found += [v for n, v in held.items() if n.endswith("running_var~") and "sums/" not in n]
    assert all((value >= 0).all() and value.isfinite().all() for value in found)
    counts = [int(value) for name, value in models.items() if name.endswith(COUNT)]
    assert min(counts) > 1 or case == "tune"  # which tunes the output layer alone
    # In three rounds of three steps the server's model has seen a batch a step, where it has.
    passes = {"minibatch": 3, "pfedme": 9 * 5, "local": 0, "tune": 0}
    for name in {f"w/{COUNT}", f"mean/{COUNT}", f"trail/{COUNT}"} & held.keys():
        expected = passes.get(settings.scheme.name, 9)
        assert float(held[name]) == expected or (name[:5] == "trail" and held[name] < expected)


# Whole runs

BATCH_NORM = {"model": {"name": "tests.zoo:BatchNorm"}}


@pytest.mark.parametrize(
    "law",
    [
        "changes_nothing_it_is_given",
        "sends_nothing_personal",
        "keeps_its_state_on_disk_bit_for_bit",
        "ends_after_a_stop_as_if_never_stopped",
    ],
)
def test_fedbn_keeps_the_laws_with_batch_norm(law: str, tmp_path: Path) -> None:
    LAWS[law](Laboratory("fedbn", tmp_path, BATCH_NORM | {"data": {"clients": 5}}))


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Run:
    from bouquet.engines import simulate, with_nodes
    from bouquet.server_app.main import Job
    from bouquet.storage.runfolder import RunFolder

    folder = tmp_path_factory.mktemp("averaged") / "run"
    settings = configured(scheme="apfl", save_predictors=True, store="disk")
    simulate([Job(with_nodes(settings), RunFolder(folder))], "inline")
    return Run(folder)


def test_files_load_into_the_plain_model(averaged: Run, tmp_path: Path) -> None:
    """What is saved, rebuilt and exported has all of its names, in PyTorch's types."""
    module = zoo.Folded((64,), 10)
    saved = load_file(averaged.path / "predictors" / "000.safetensors")
    module.load_state_dict(saved, strict=True)
    assert saved["norm.num_batches_tracked"].dtype == torch.int64
    assert int(saved["norm.num_batches_tracked"]) == 2 * 3
    checkpoint = {name: torch.from_numpy(value) for name, value in averaged.server().items()}
    module.load_state_dict(
        {name.removeprefix("w/"): value for name, value in checkpoint.items()}, strict=False
    )
    shared = shared_model(averaged.path).state_dict()
    assert torch.equal(shared["norm.running_var"], checkpoint["w/norm.running_var"])
    files = export(predictor_of(averaged.path, "000"), tmp_path)
    assert {file.suffix for file in files} >= {".safetensors", ".pt"}
    module.load_state_dict(load_file(tmp_path / "000.safetensors"), strict=True)
    x = torch.rand(3, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have its newer formats
        script = torch.jit.load(tmp_path / "000.pt")
    torch.testing.assert_close(script(x), module.eval()(x))


def test_a_model_built_anew_is_the_one_that_was_saved(averaged: Run) -> None:
    file = averaged.path / "predictors" / "001.safetensors"
    saved = load_file(file)
    file.unlink()
    rebuilt = predictor_of(averaged.path, "001").weights
    assert saved.keys() == rebuilt.keys()
    assert all(torch.equal(value, rebuilt[name]) for name, value in saved.items())


def test_constants_travel_with_nobody(averaged: Run) -> None:
    names = {name.rpartition("/")[2] for name in [*averaged.server(), *averaged.personal("000")]}
    assert {"order", "mask"}.isdisjoint(names)
    assert {"norm.running_mean", "norm.running_mean~"} <= names


def test_personal_statistics_are_not_sent(start: Start) -> None:
    """FedSim with no other personal part: FedAvg whose statistics stay at home."""
    run = start(
        settings=configured(
            scheme="fedsim", statistics="personal", personal={"split": "none"}, store="disk"
        )
    )
    assert {name.removeprefix("v/") for name in run.personal("000")} == {MEAN, VAR, COUNT}
    assert not any("running" in name for name in run.server())


def test_stages_hand_statistics_on(start: Start) -> None:
    """What the first stage found, the second leaves as it is, and the third goes on from."""
    keys: dict[str, Any] = {"data": {"clients": 3, "partition": "iid"}, "nodes": 2}
    keys |= {"local_steps": 3, "batch_size": 8, "model": {"name": "tests.zoo:Folded"}}
    pipeline = "fedavg:2 fedavg:2 fedprox:1"
    run = start(pipeline=pipeline, stage2={"statistics": "frozen"}, save_predictors=True, **keys)
    count = load_file(run.path / "predictors" / "000.safetensors")["norm.num_batches_tracked"]
    assert int(count) == 3 * (2 + 1)
    one = start(scheme="fedavg", rounds=2, **keys)
    frozen = start(
        pipeline="fedavg:2 fedavg:2",
        stage2={"statistics": "frozen"},
        save_predictors=True,
        **keys,
    )
    found = load_file(frozen.path / "predictors" / "000.safetensors")
    assert one.shared("norm.running_var").tolist() == found["norm.running_var"].tolist()
    assert not torch.equal(found["conv.weight"], torch.from_numpy(one.shared("conv.weight")))


def test_torchvisions_resnet_trains(start: Start, stock: str) -> None:
    keys = {"scheme": "fedbn", "rounds": 1, "local_steps": 1, "nodes": 1, "store": "memory"}
    run = start(settings=configured(stock, **keys, data={"clients": 2, "partition": "iid"}))
    assert 0 < run.summary["personal"]["loss"]["mean"] < 10
    assert "w/1.layer4.1.conv2.weight" in run.server()
    assert "w/1.layer4.1.bn2.weight" not in run.server()


# Splits and refusals


def test_batch_norm_is_found_by_its_layers_or_by_its_statistics() -> None:
    """A server that has no module, in somebody's Flower app, goes by names."""
    module = zoo.Folded((64,), 10)
    assert "batch-norm" in offers(module)
    names = [name for name, _ in module.named_parameters()]
    names += buffers_of(module, (64,), torch.float32).statistics
    expected = {"norm.weight", "norm.bias", MEAN, VAR, COUNT}
    assert personal_names(names, "batch-norm", named_splits(module)) == expected
    assert personal_names(names, "batch-norm") == expected
    untracked = zoo.Untracked((6,), 3)
    names = [name for name, _ in untracked.named_parameters()]
    found = personal_names(names, "batch-norm", named_splits(untracked))
    assert found == {"norm.weight", "norm.bias"}
    assert "batch-norm" not in offers(zoo.Plain((6,), 3))


@pytest.mark.parametrize(
    ("split", "expected"),
    [("output", {"output.weight", "output.bias"}), ("*.running_mean", {MEAN})],
)
def test_other_splits_know_statistics_by_pytorchs_names(split: str, expected: set[str]) -> None:
    task = problem(configured(scheme="fedsim", personal={"split": split})).task
    assert task.personal == expected


@pytest.mark.parametrize("scheme", ["fedavg", "apfl", "finetune"])
def test_whole_models_have_no_personal_statistics_of_their_own(scheme: str) -> None:
    words = rf"statistics must be 'average' or 'frozen' for {scheme}, not 'personal'.*fedbn"
    with pytest.raises(BadInput, match=words):
        parse({"scheme": scheme, "statistics": "personal"})


def test_a_wrong_word_for_statistics_is_refused_with_the_right_ones() -> None:
    with pytest.raises(BadInput, match=r"statistics must be .*'frozen'.*not 'mean'"):
        parse({"statistics": "mean"})


ODD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.output = nn.Linear(64, classes)
        self.register_buffer("seen", torch.zeros(1), persistent=PERSISTENT)

    def forward(self, x):
        if self.training:
            STEP
        return self.output(x)
"""


@pytest.mark.parametrize(
    ("step", "persistent", "sentence"),
    [
        ("self.seen = torch.cat([self.seen, x[:1, 0]])", True, "'seen'.*numbers of one shape"),
        ("self.seen += len(x)", False, "'seen' is changed in training, but not saved"),
        ("self.seen += float(x.max() > 1.5)", True, "'seen' is changed in .* not changed by every"),
    ],
)
def test_buffers_that_would_be_lost_are_refused(
    step: str, persistent: bool, sentence: str, tmp_path: Path
) -> None:
    code = ODD.replace("STEP", step).replace("PERSISTENT", str(persistent))
    (tmp_path / "odd.py").write_text(textwrap.dedent(code))
    model = {"name": f"{tmp_path / 'odd.py'}:Net"}
    # Images of digits are numbers from 0 to 1; scaled to a deviation of 1 they go beyond 1.5.
    data = {"clients": 3, "scale": "standard"}
    with pytest.raises(BadInput, match=sentence):
        problem(parse(kebab({"model": model, "data": data})))
