"""Steps recorded and replayed lead where steps taken as they are lead."""

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from bouquet.core import cohort, compiling, replay
from bouquet.core.descent import Sgd, descend, slope_in_vmap
from bouquet.core.optimizers import Optimizer
from bouquet.core.scheme import Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree
from bouquet.problem import make_task
from bouquet.settings import parse
from bouquet.strategies.fedavg import FedAvg
from bouquet.strategies.mocha import Mocha
from tests.conftest import WORKING, Run

Start = Callable[..., Run]
CLIENTS, STEPS, EXAMPLES, FEATURES = 3, 4, 5, 6
PLAIN, RECORDED = Sgd(0.1), Sgd(0.1, recorded="replayed")


class Mixture(NamedTuple):
    """Two models and how they are mixed."""

    w: Tree
    v: Tree
    alpha: Tensor


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Every test records anew."""
    replay.RECORDED.programs.clear()
    replay.RECORDED.refused.clear()
    yield
    replay.RECORDED.programs.clear()
    replay.RECORDED.refused.clear()


def recordings() -> int:
    return sum(len(variants) for variants in replay.RECORDED.programs.values())


def tree(seed: int) -> Tree:
    drawn = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, FEATURES, generator=drawn, dtype=torch.float64),
        "bias": torch.randn(3, generator=drawn, dtype=torch.float64),
    }


def batches(seed: int = 0, last: float = 1.0) -> list[Batch]:
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(STEPS, EXAMPLES, FEATURES, generator=drawn, dtype=torch.float64)
    y = torch.randint(3, (STEPS, EXAMPLES), generator=drawn)
    weight = torch.full((STEPS, EXAMPLES), 1 / EXAMPLES, dtype=torch.float64)
    active = torch.ones(STEPS, dtype=torch.float64)
    active[-1] = last
    found = [Batch(*parts) for parts in zip(x, y, weight, active, strict=True)]
    return [one._replace(pace=one.pace.double() / (1 + place)) for place, one in enumerate(found)]


def loss(w: Tree, batch: Batch) -> Tensor:
    output = torch.nn.functional.linear(batch.x, w["weight"], w["bias"])
    losses = torch.nn.functional.cross_entropy(output, batch.y, reduction="none")
    return losses @ batch.weight


def mixed(point: Mixture, batch: Batch) -> Tensor:
    mixture = {n: point.alpha * v + (1 - point.alpha) * point.w[n] for n, v in point.v.items()}
    return loss(point.w, batch) + loss(mixture, batch)


def mixture(seed: int) -> Mixture:
    return Mixture(tree(seed), tree(seed + 10), torch.tensor(0.4, dtype=torch.float64))


def near(one: Any, other: Any) -> bool:
    flat = torch.utils._pytree.tree_leaves
    pairs = zip(flat(one), flat(other), strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=1e-13) for a, b in pairs)


WAYS: dict[str, dict[str, Any]] = {
    "all that moves": {},
    "one part held": {"moving": ("w", "v")},
    "a rate of its own": {"rates": {"alpha": 3.0}},
    "projected": {"rates": {"alpha": 30.0}, "project": lambda p: p._replace(alpha=p.alpha * 0.5)},
}
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip": 0.3},
    "clipped as one": {"clip": 0.3, "clip_all": True},
    "decayed": {"decoupled_decay": 0.1},
}
MORE_RULES: dict[str, dict[str, Any]] = {
    "with momentum": {"optimizer": Optimizer("momentum"), "clip": 0.3},
    "by adam": {"optimizer": Optimizer("adam"), "decoupled_decay": 0.1},
    "slowing down": {"paced": True},
}


@pytest.mark.parametrize(
    ("way", "rule"),
    [(way, rule) for way in WAYS for rule in RULES] + [("projected", rule) for rule in MORE_RULES],
)
def test_a_recorded_step_is_the_step(way: str, rule: str) -> None:
    told = (RULES | MORE_RULES)[rule]
    plain, recorded = (replace(sgd, **told) for sgd in (PLAIN, RECORDED))
    expected = descend(mixed, mixture(1), batches(), plain, **WAYS[way])
    assert near(descend(mixed, mixture(1), batches(), recorded, **WAYS[way]), expected)
    assert recordings() == 1
    assert not near(expected, mixture(1))


@pytest.mark.parametrize(
    ("way", "rule"),
    [(way, "plain") for way in WAYS]
    + [("projected", "by adam"), ("one part held", "slowing down")],
)
def test_the_steps_of_many_clients_are_those_of_each(way: str, rule: str) -> None:
    """Side by side: one of them takes a step less than the others."""
    told = (RULES | MORE_RULES)[rule]
    plain, recorded = (replace(sgd, **told) for sgd in (PLAIN, RECORDED))
    points = [mixture(seed) for seed in range(CLIENTS)]
    rounds = [batches(seed, last=float(seed > 0)) for seed in range(CLIENTS)]
    stacked = torch.utils._pytree.tree_map(lambda *all_: torch.stack(all_), *points)
    steps = torch.utils._pytree.tree_map(lambda *all_: torch.stack(all_), *rounds)
    found = vmap(lambda point, own: descend(mixed, point, own, recorded, **WAYS[way]))(
        stacked, steps
    )
    for client in range(CLIENTS):
        alone = descend(mixed, points[client], rounds[client], plain, **WAYS[way])
        assert near(torch.utils._pytree.tree_map(lambda all_: all_[client], found), alone)  # noqa: B023
    assert recordings() == 1


def test_one_recording_serves_any_number_of_clients() -> None:
    def ends(count: int) -> Tree:
        points = [tree(seed) for seed in range(count)]
        rounds = [batches(seed) for seed in range(count)]
        stacked = torch.utils._pytree.tree_map(lambda *all_: torch.stack(all_), *points)
        steps = torch.utils._pytree.tree_map(lambda *all_: torch.stack(all_), *rounds)
        found: Tree = vmap(lambda point, own: descend(loss, point, own, RECORDED))(stacked, steps)
        return found

    many = ends(7)
    assert near({name: value[:1] for name, value in many.items()}, ends(1))
    assert near({name: value[:5] for name, value in many.items()}, ends(5))
    assert recordings() == 1


def single(tree: Tree) -> Tree:
    return {name: value.float() for name, value in tree.items()}


def single_batches() -> list[Batch]:
    return [
        batch._replace(x=batch.x.float(), weight=batch.weight.float(), active=batch.active.float())
        for batch in batches()
    ]


def test_a_product_that_is_added_to_the_weights_as_it_is_formed_is_the_slope() -> None:
    """In single precision; in double, recorded steps have the bits of steps as they are."""
    expected = descend(loss, single(tree(9)), single_batches(), PLAIN)
    found = descend(loss, single(tree(9)), single_batches(), RECORDED)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6)
    assert recordings() == 1
    plain = descend(loss, tree(9), batches(), PLAIN)
    found = descend(loss, tree(9), batches(), RECORDED)
    assert all(torch.equal(found[name], value) for name, value in plain.items())


def test_a_slope_made_of_other_weights_is_formed_before_they_move() -> None:
    """d/da of sum(a · b) is b, as it was before the step, and the other way round."""

    def product(w: Tree, batch: Batch) -> Tensor:
        return batch.active * (w["a"] @ w["b"]).sum()

    drawn = torch.Generator().manual_seed(0)
    start = {name: torch.randn(3, 3, generator=drawn) for name in "ab"}
    expected = descend(product, start, single_batches(), PLAIN)
    found = descend(product, start, single_batches(), RECORDED)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6)
    assert recordings() == 1


@pytest.mark.parametrize("shape", [(), (1, 1), (3, 1), (1, FEATURES), (3, FEATURES)])
def test_a_slope_that_is_scaled_is_scaled_in_its_own_places(shape: tuple[int, ...]) -> None:
    """As many clients as rows, so that one could be taken for the other."""
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(4)) + 0.5

    def scaled(point: Tree, batch: Batch) -> Tensor:
        here = {name: value.detach() for name, value in point.items()}
        slopes: Tree = torch.func.grad(loss)(here, batch)
        return (scale * slopes["weight"] * point["weight"]).sum()

    points, steps = [single(tree(seed)) for seed in range(3)], single_batches()
    stacked = torch.utils._pytree.tree_map(lambda *all_: torch.stack(all_), *points)
    together = vmap(lambda point: descend(scaled, point, steps, RECORDED))(stacked)
    for client, point in enumerate(points):
        recorded = descend(scaled, point, steps, RECORDED)["weight"]
        plain = descend(scaled, point, steps, PLAIN)["weight"]
        assert torch.allclose(recorded, plain, rtol=1e-5, atol=1e-5)
        assert torch.allclose(together["weight"][client], plain, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_scripted_is_replayed_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: Any) -> Any:
        raise RuntimeError("TorchScript does not know it")

    scripted = descend(mixed, mixture(1), batches(), RECORDED, **WAYS["projected"])
    replay.RECORDED.programs.clear()
    monkeypatch.setattr(replay, "scripted", refuse)
    found = descend(mixed, mixture(1), batches(), RECORDED, **WAYS["projected"])
    assert recordings() == 1
    flat = torch.utils._pytree.tree_leaves
    assert all(torch.equal(a, b) for a, b in zip(flat(found), flat(scripted), strict=True))


def test_the_shared_half_of_apfl_is_fedavg_to_the_last_bit(start: Start) -> None:
    """Also in single precision, where products are added to the weights as they are formed."""
    keys: dict[str, Any] = {
        "rounds": 2,
        "local_steps": 16,
        "weights": "uniform",
        "data": {"clients": 5},
        "model": {"name": "mlp", "hidden": 6, "layers": 1},
    }
    apfl = start(scheme="apfl", apfl={"alpha": 0.3}, **keys)
    assert recordings() > 0
    fedavg = start(scheme="fedavg", **keys)
    for name in ("hidden1.weight", "hidden1.bias", "output.weight", "output.bias"):
        assert (apfl.shared(name) == fedavg.shared(name)).all()


def test_where_it_starts_and_what_it_refers_to_are_left_alone() -> None:
    point, before = mixture(1), mixture(1)
    descend(mixed, point, batches(), RECORDED)
    assert near(point, before)


def pulled(centre: Tree, strength: float) -> Callable[[Tree, Batch], Tensor]:
    def objective(w: Tree, batch: Batch) -> Tensor:
        gaps = [(value - centre[name]).square().sum() for name, value in w.items()]
        return loss(w, batch) + strength * torch.stack(gaps).sum()

    return objective


def test_one_recording_serves_every_client_whatever_its_objective_refers_to() -> None:
    for seed in range(4):
        objective = pulled(tree(seed), 0.5)
        expected = descend(objective, tree(9), batches(seed), PLAIN)
        assert near(descend(objective, tree(9), batches(seed), RECORDED), expected)
    assert recordings() == 1


def test_another_number_in_an_objective_is_another_recording() -> None:
    for strength in (0.5, 1.0):
        objective = pulled(tree(0), strength)
        expected = descend(objective, tree(9), batches(), PLAIN)
        assert near(descend(objective, tree(9), batches(), RECORDED), expected)
    assert recordings() == 2


def test_another_rate_is_no_other_recording() -> None:
    for lr in (0.1, 0.2):
        expected = descend(loss, tree(9), batches(), replace(PLAIN, lr=lr))
        assert near(descend(loss, tree(9), batches(), replace(RECORDED, lr=lr)), expected)
    assert recordings() == 1


def work(round_: int) -> Work:
    task = Task(nn.Linear(FEATURES, 3).double().to("meta"), tree(0), 3)
    return Work(task, RECORDED, batches(), round=round_)


def test_an_objective_that_asks_for_the_round_is_recorded_in_every_round() -> None:
    def decaying(work: Work) -> Callable[[Tree, Batch], Tensor]:
        return lambda w, batch: loss(w, batch) / work.round

    for round_ in (1, 2, 2):
        objective = decaying(work(round_))
        expected = descend(objective, tree(9), batches(), PLAIN)
        assert near(descend(objective, tree(9), batches(), RECORDED), expected)
    assert recordings() == 2


@dataclass(eq=False)
class Box:
    """Something a recording cannot look into."""

    value: Tensor


def linear(seed: int) -> Task:
    keys = {"model.name": "linear", "seed": seed, "dtype": "float64"}
    return make_task(parse(keys), (FEATURES,), 3, None)


def test_runs_of_one_model_share_a_recording() -> None:
    def twice(work: Work) -> Callable[[Tree, Batch], Tensor]:
        return lambda w, batch: 2 * work.task.loss(w, batch)

    for task in (linear(0), linear(1)):
        objective = twice(Work(task, RECORDED, batches()))
        expected = descend(objective, task.initial, batches(), PLAIN)
        assert near(descend(objective, task.initial, batches(), RECORDED), expected)
    assert recordings() == 1


def test_where_a_runs_weights_start_is_not_taken_for_a_constant() -> None:
    def pulled(work: Work) -> Callable[[Tree, Batch], Tensor]:
        start = "output.bias"
        return lambda w, b: work.task.loss(w, b) + (w[start] - work.task.initial[start]).norm()

    for task in (linear(0), linear(1)):
        objective = pulled(Work(task, RECORDED, batches()))
        expected = descend(objective, linear(2).initial, batches(), PLAIN)
        assert near(descend(objective, linear(2).initial, batches(), RECORDED), expected)
    assert "where the weights start" in next(iter(replay.RECORDED.refused.values()))


def test_a_hidden_tensor_is_not_taken_for_a_constant() -> None:
    box = Box(torch.tensor(1.0, dtype=torch.float64))
    for value in (1.0, 2.0):
        box.value = torch.tensor(value, dtype=torch.float64)
        expected = descend(lambda w, b: loss(w, b) * box.value, tree(9), batches(), PLAIN)
        found = descend(lambda w, b: loss(w, b) * box.value, tree(9), batches(), RECORDED)
        assert near(found, expected)
    assert replay.RECORDED.refused


def test_what_draws_is_not_recorded() -> None:
    def dropping(w: Tree, batch: Batch) -> Tensor:
        return loss(w, batch._replace(x=torch.dropout(batch.x, 0.5, True)))

    ends = [descend(dropping, tree(9), batches(), RECORDED) for _ in range(2)]
    assert not near(*ends)
    assert "random" in str(next(iter(replay.RECORDED.refused.values())))


def test_a_model_that_writes_over_its_own_numbers_is_recorded_too() -> None:
    def in_place(w: Tree, batch: Batch) -> Tensor:
        hidden = torch.nn.functional.linear(batch.x, w["weight"], w["bias"])
        return (torch.relu_(hidden).square().sum(dim=1)) @ batch.weight

    expected = descend(in_place, tree(9), batches(), PLAIN)
    assert near(descend(in_place, tree(9), batches(), RECORDED), expected)
    assert recordings() == 1


def test_whoever_differentiates_through_steps_gets_them_as_they_are() -> None:
    begin, steps = tree(9), batches()

    def end(scale: Tensor, sgd: Sgd) -> Tensor:
        start = {name: scale * value for name, value in begin.items()}
        return descend(loss, start, steps, replace(sgd, gradient=slope_in_vmap))["bias"][0]

    scale = torch.tensor(1.0, dtype=torch.float64)
    plain, recorded = (torch.func.grad(end)(scale, sgd) for sgd in (PLAIN, RECORDED))
    assert plain == recorded != 0


EVERY = [(name, "float64") for name in WORKING if name != "mocha"]
# Where products are added as they are formed: one of each kind of objective.
SOME = [(name, "float32") for name in ("fedavg", "apfl", "perfedavg", "pfedme", "plsgd", "fedalt")]


@pytest.mark.parametrize(("scheme", "dtype"), EVERY + SOME)
def test_every_scheme_ends_where_its_steps_taken_as_they_are_end(
    start: Start, monkeypatch: pytest.MonkeyPatch, scheme: str, dtype: str
) -> None:
    near = 1e-12 if dtype == "float64" else 1e-4
    keys: dict[str, Any] = {
        "scheme": scheme,
        "rounds": 2,
        "nodes": 1,
        "local_steps": 16,
        "dtype": dtype,
        "data": {"clients": 3},
        "model": {"name": "mlp", "hidden": 6, "layers": 1},
        "save_predictors": True,
    }
    recorded = start(**keys)
    assert recordings() > 0
    assert not replay.RECORDED.refused
    monkeypatch.setattr(cohort, "records", lambda *words: False)
    plain = start(**keys)
    for name, value in plain.server().items():
        assert abs(recorded.server()[name] - value).max(initial=0.0) < near
    for name in ("hidden1.weight", "output.bias"):
        gap = recorded.predictor("001", name) - plain.predictor("001", name)
        assert abs(gap).max() < near


@pytest.mark.parametrize(("model", "expected"), [("mlp", "vmap"), ("cnn", "loop")])
def test_convolutions_train_one_by_one(model: str, expected: str) -> None:
    shape = (1, 8, 8) if model == "cnn" else (64,)
    task = make_task(parse({"model.name": model}), shape, 3, None)
    assert cohort.choice(FedAvg(), task, "auto") == expected
    assert cohort.choice(FedAvg(), task, "compiled") == "compiled"
    assert cohort.choice(FedAvg(), replace(task, whole=True), "vmap") == "loop"
    assert cohort.choice(Mocha(), task, "auto") == "loop"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_compiled_steps_are_the_steps(start: Start) -> None:
    keys: dict[str, Any] = {"rounds": 2, "dtype": "float64", "model": {"name": "linear"}}
    plain, compiled = (start(scheme="fedavg", cohort=how, **keys) for how in ("loop", "compiled"))
    gap = abs(plain.shared("output.weight") - compiled.shared("output.weight")).max()
    assert gap < 1e-12
    assert not compiling._said


def test_what_a_compiler_would_lose_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's loses what is written to a double without an axis, such as a mixing weight."""
    handed: list[tuple[Any, ...]] = []

    def compiler(module: Any, examples: tuple[Any, ...]) -> Any:
        handed.append(examples)
        return module

    monkeypatch.setattr(replay, "compiled", compiler)
    told = replace(PLAIN, recorded="compiled")
    for moving, count in ((("w", "v", "alpha"), 0), (("w", "v"), 1)):
        found = descend(mixed, mixture(1), batches(), told, moving=moving)
        assert near(found, descend(mixed, mixture(1), batches(), PLAIN, moving=moving))
        assert len(handed) == count


def test_where_nothing_can_be_compiled_a_sentence_says_so_once_and_the_run_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*words: Any, **more: Any) -> Any:
        raise RuntimeError("No working C++ compiler found\nand more")

    monkeypatch.setattr(torch, "compile", lambda module, **more: broken)
    monkeypatch.setattr(compiling, "_said", set())
    keys: dict[str, Any] = {"rounds": 2, "dtype": "float64", "model": {"name": "linear"}}
    with caplog.at_level(logging.WARNING, "flwr"):
        compiled = start(scheme="fedavg", cohort="compiled", **keys)
    assert [one.message for one in caplog.records] == [
        "Steps are replayed, not compiled: No working C++ compiler found"
    ]
    assert compiled.sha == start(scheme="fedavg", cohort="loop", **keys).sha


def test_a_run_says_how_its_clients_train_together(start: Start) -> None:
    keys: dict[str, Any] = {"data": {"clients": 3}, "pipeline": "fedavg:1 apfl:1", "rounds": 2}
    run = start(cohort="loop", **keys)
    first = (run.path / "config.toml").read_text().splitlines()[0]
    assert first == "# How clients train together, by cohort: fedavg: loop. apfl: loop."
    first = (start(**keys).path / "config.toml").read_text().splitlines()[0]
    assert first == "# How clients train together, by cohort: fedavg: vmap. apfl: vmap."
