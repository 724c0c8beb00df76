"""Where tensors are: which device a node chooses, and that its work is done there and nowhere else.

No GPU is needed: :mod:`tests.other_device` is a device that refuses to be mixed with the CPU.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bouquet.client_app import main
from bouquet.client_app.device import device
from bouquet.client_app.node import Node, Result
from bouquet.client_app.stores import MemoryStore
from bouquet.continuing import resumed
from bouquet.core import cohort, placement
from bouquet.core.chance import Seeded
from bouquet.core.descent import Sgd, descend
from bouquet.core.errors import BadInput
from bouquet.core.placement import CPU, find, gpus, kept, moved
from bouquet.core.replay import RECORDED
from bouquet.core.scheme import Model, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Nothing, flatten
from bouquet.deploy.commands import Host
from bouquet.engines import simulate, with_nodes
from bouquet.problem import POOL, make_task, problem
from bouquet.server_app.main import Job
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies.fedavg import FedAvg
from tests.conftest import WORKING, Run, kebab
from tests.other_device import OTHER, Elsewhere

Start = Callable[..., Run]
MODELS: dict[str, dict[str, object]] = {
    "mlp": {"model.name": "mlp", "model.hidden": 8},
    "cnn": {"model.name": "cnn"},
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with the devices that a test names, besides its CPU."""

    def has(*names: str) -> None:
        monkeypatch.setattr(placement, "there_are", lambda: ["cpu", *names])

    return has


# Which device


@pytest.mark.parametrize(
    ("there", "asked", "found"),
    [
        ((), "auto", "cpu"),
        ((), "cpu", "cpu"),
        (("cuda:0", "cuda:1"), "auto", "cuda:0"),
        (("cuda:0", "cuda:1"), "cuda", "cuda:0"),
        (("cuda:0", "cuda:1"), "cuda:1", "cuda:1"),
        (("cuda:0",), "cpu", "cpu"),
        (("mps",), "auto", "cpu"),
        (("mps",), "mps", "mps:0"),
    ],
)
def test_a_device_is_found_by_its_name(
    machine: Callable[..., None], there: tuple[str, ...], asked: str, found: str
) -> None:
    """As PyTorch names the tensors that are on it, so that the two can be compared."""
    machine(*there)
    assert str(find(asked)) == found


def test_nodes_share_out_the_gpus_unless_one_is_named(machine: Callable[..., None]) -> None:
    machine("cuda:0", "cuda:1")
    assert [str(find("auto", place)) for place in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [str(find("cuda:1", place)) for place in range(3)] == ["cuda:1"] * 3


def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    machine: Callable[..., None],
) -> None:
    machine("cuda:0", "cuda:1")
    with pytest.raises(BadInput) as refused:
        find("cuda:2")
    assert str(refused.value) == (
        "device must be one that this machine has, cpu or cuda:0 or cuda:1, or auto, not 'cuda:2'."
    )


def test_a_run_on_a_device_that_is_not_there_leaves_nothing_behind(
    machine: Callable[..., None], tmp_path: Path
) -> None:
    machine()
    settings = parse({"device": "cuda", "nodes": 2})
    with pytest.raises(BadInput, match=r"^device must be one that this machine has, cpu, or auto"):
        simulate([Job(settings, RunFolder(tmp_path / "run"))], "inline")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"^device must be auto, cpu, cuda, cuda:N or mps, not '"):
        parse({"device": name})


@pytest.mark.parametrize(("asked", "nodes"), [("auto", 2), ("cuda", 2), ("cuda:1", 1), ("mps", 1)])
def test_there_is_a_node_for_each_gpu(machine: Callable[..., None], asked: str, nodes: int) -> None:
    machine("cuda:0", "cuda:1", "mps")
    assert with_nodes(parse({"device": asked})).run.nodes == nodes
    assert with_nodes(parse({"device": asked, "nodes": 5})).run.nodes == 5


def test_on_the_cpu_no_gpu_counts(machine: Callable[..., None]) -> None:
    machine("cuda:0")
    assert gpus("cpu") == 0


def test_ray_chooses_the_gpu_of_a_worker(machine: Callable[..., None], tmp_path: Path) -> None:
    machine("cuda:0", "cuda:1")
    settings = with_nodes(parse({"device": "cuda:1"}))
    with pytest.raises(BadInput, match=r"^device must be 'cuda' on the ray engine, not 'cuda:1'"):
        simulate([Job(settings, RunFolder(tmp_path))], "ray")


@pytest.mark.parametrize(
    ("owner", "server", "chosen"),
    [
        ("", "auto", "auto"),
        ("", "cpu", "cpu"),
        ("", "cuda:1", "auto"),  # it may have none, and run all the same
        ("cuda:0", "cpu", "cuda:0"),
        ("cpu", "cuda", "cpu"),
    ],
)
def test_a_real_devices_owner_decides_where_it_computes(
    owner: str, server: str, chosen: str
) -> None:
    words = {"client-id": "north", "state-dir": "state"} | ({"device": owner} if owner else {})
    own = device(words)
    assert own is not None
    assert own.chosen(server) == chosen


def test_a_node_is_told_where_to_compute_in_its_config(tmp_path: Path) -> None:
    assert (
        'device="cuda:1"' in Host("north", ("north",), tmp_path, computes_on="cuda:1").node_config
    )
    assert "device" not in Host("north", ("north",), tmp_path).node_config


# Moving


def test_what_is_there_already_is_not_copied() -> None:
    tree = {"w": torch.ones(2)}
    assert moved(tree, CPU)["w"] is tree["w"]
    assert kept(tree["w"], CPU) is tree["w"]


def test_data_are_moved_once() -> None:
    x = torch.ones(2)
    there = kept(x, OTHER)
    assert there.device == OTHER
    assert kept(x, OTHER) is there


def test_the_other_device_refuses_to_be_mixed() -> None:
    """Or the tests below would show nothing."""
    there = moved(torch.ones(3), OTHER)
    with pytest.raises(RuntimeError, match="mixes devices"):
        there + torch.ones(3)
    assert isinstance(there + torch.tensor(1.0), Elsewhere)


# A node's work


def worked(settings: Settings, where: torch.device) -> tuple[Result, Result, MemoryStore]:
    """A round of everybody's training and its evaluation."""
    store, posed = MemoryStore(), replace(problem(settings), device=where)
    scheme, clients = settings.scheme, sorted(posed.data.clients)
    node = Node(settings, posed, tuple(clients), store)
    learners = [POOL] if scheme.pooled else clients
    server = scheme.init_server(posed.task)
    sent = flatten(scheme.downlink(server, learners))
    trained = node.train(1, learners, [1.0] * len(learners), sent)
    received = flatten(scheme.downlink(server, clients))
    return trained, node.evaluate(1, clients, received, None), store


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scheme", WORKING)
def test_a_nodes_work_is_done_on_its_device(scheme: str, model: str) -> None:
    """Nothing is mixed on the way, what comes back is the CPU's, and it is what the CPU finds.

    Not to the last bit: a convolution's second derivative is another kernel's there.
    """
    plain = scheme == "mocha"  # linear models, and no gradient to clip
    keys: dict[str, object] = (
        {"model.name": "linear"} if plain else MODELS[model] | {"grad-clip": 1.0}
    )
    keys |= {"cohort": "vmap"} if model == "mlp" and not plain else {}
    settings = parse({"scheme": scheme, "data.clients": 4, "local-steps": 3} | keys)
    here, there = worked(settings, CPU), worked(settings, OTHER)
    assert all(value.device == CPU for value in there[0].mean.values())
    torch.testing.assert_close(there[0].mean, here[0].mean)
    for name, values in here[1].metrics.items():
        assert there[1].metrics[name] == pytest.approx(values)
    for name, values in here[1].diagnostics.items():
        assert there[1].diagnostics[name] == pytest.approx(values)


@pytest.mark.parametrize("model", MODELS)
def test_moments_falling_steps_and_changed_inputs_are_on_the_device_too(model: str) -> None:
    keys: dict[str, object] = {"optimizer": "adam", "optimizer-state": "keep", "lr": 0.01}
    keys |= {"lr-decay-per-step": 0.1, "augment": "tests.zoo:jitter", "data.clients": 2}
    settings = parse({"scheme": "apfl", "local-steps": 2} | keys | MODELS[model])
    here, there = worked(settings, CPU), worked(settings, OTHER)
    torch.testing.assert_close(there[0].mean, here[0].mean)


@pytest.mark.parametrize(
    ("keys", "shape"),
    [
        ({"model.name": "transformer", "model.width": 8, "model.layers": 1}, (5,)),
        ({"model.name": "char-lstm", "model.width": 8, "model.layers": 1}, (5,)),
        ({"model.name": "resnet18"}, (1, 8, 8)),
    ],
)
def test_our_models_learn_on_a_device(keys: dict[str, object], shape: tuple[int, ...]) -> None:
    """A model may make tensors of its own, such as a mask, where its input is."""
    task = make_task(parse(keys), shape, 7, None)
    text = len(shape) == 1
    x = torch.arange(2 * math.prod(shape)).reshape(2, *shape) % 7
    y = x if text else torch.tensor([0, 1])
    batch = Batch(x if text else x.float(), y, torch.full((2,), 0.5), torch.tensor(1.0))
    here = descend(task.loss, task.initial, [batch], Sgd(0.1))
    there = descend(
        task.loss,
        moved(task.initial, OTHER),
        [moved(batch, OTHER)],
        Sgd(0.1, recorded="replayed"),
    )
    torch.testing.assert_close(moved(there, CPU), here)


def test_a_gpus_own_dropout_is_seeded() -> None:
    """Its fused operator, which other devices have too: kept examples are scaled by 1 / (1 − p)."""

    def dropped(seed: int) -> tuple[Tensor, ...]:
        with Seeded(seed) as seeded:
            found = torch.native_dropout(torch.ones(100), 0.75, True)
        assert seeded.drew
        return found

    (once, mask), (again, _), (other, _) = dropped(1), dropped(1), dropped(2)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(once, 4.0 * mask)
    assert 10 < mask.sum() < 40


def test_steps_are_recorded_for_each_device_anew() -> None:
    """A recording may have made tensors of its device."""
    settings = parse({"data.clients": 4, "local-steps": 16, "model.hidden": 9, "scheme": "fedavg"})
    worked(settings, CPU)
    before = len(RECORDED.programs)
    worked(settings, OTHER)
    assert len(RECORDED.programs) > before
    assert not RECORDED.refused


@pytest.mark.parametrize("scheme", ["apfl", "fedsim"])
def test_a_whole_run_on_a_device_ends_as_one_on_the_cpu(
    start: Start, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Personal states, models and outcomes are written from it too, and it can be resumed here."""
    keys: dict[str, Any] = {
        "scheme": scheme,
        "nodes": 1,
        "local_steps": 2,
        "save_predictors": True,
        "save_outcomes": True,
        "grad_clip": 1.0,
        "data": {"clients": 3},
        "model": {"hidden": 8},
    }
    here = start(rounds=3, **keys)
    with monkeypatch.context() as patched:
        patched.setattr(main, "find", lambda asked, place: OTHER)
        there = start(rounds=2, **keys)
    start(settings=parse(kebab(keys | {"rounds": 3})), folder=there.path, resume=True)
    assert there.sha == here.sha
    assert there.clients == here.clients


def test_a_run_may_go_on_on_another_device(start: Start, machine: Callable[..., None]) -> None:
    """The folder says what was asked for, not what was found, so it fits another machine."""
    machine()
    keys: dict[str, Any] = {"data": {"clients": 3}, "model": {"hidden": 8}, "nodes": 1}
    run = start(rounds=1, **keys)
    assert 'device = "auto"' in (run.path / "config.toml").read_text()
    after = resumed(RunFolder(run.path), {"rounds": 2, "device": "cpu"})
    assert after.run.device == "cpu"
    start(settings=after, folder=run.path, resume=True)
    assert run.sha == start(rounds=2, **keys).sha


# Mixed precision


def logistic(amp: torch.dtype | None) -> tuple[Task, Batch]:
    """A linear model and its one full batch."""
    rng = torch.Generator().manual_seed(0)
    module = nn.Linear(6, 3)
    initial = {n: torch.randn(p.shape, generator=rng) for n, p in module.named_parameters()}
    x, y = torch.randn(20, 6, generator=rng), torch.randint(3, (20,), generator=rng)
    batch = Batch(x, y, torch.full((20,), 1 / 20), torch.tensor(1.0))
    return Task(module.to("meta"), initial, 3, amp=amp), batch


def slope_bound(task: Task, batch: Batch) -> Tensor:
    """How far rounding to bf16 moves the slope in a linear model's weights, at most.

    With u = 2⁻⁹ for one rounding: inputs, weights, bias and the sum of the products are rounded, so
    an output z = W x + b moves by at most 2u |W| |x| + u |b| + u |z|. Softmax moves by no more than
    its input in the 2-norm. The slope xᵀ (p − y) / n rounds x and p − y again, and its result. The
    1.1 is for products of roundings.
    """
    u, w, b = 2.0**-9, task.initial["weight"], task.initial["bias"]
    x = batch.x
    z = x @ w.T + b
    moved_z = u * (2 * x.abs() @ w.abs().T + b.abs() + z.abs())
    error = (z.softmax(1) - nn.functional.one_hot(batch.y, 3)).abs()
    moved_p = moved_z.norm(dim=1, keepdim=True) + 2 * u * error
    bound: Tensor = 1.1 * (moved_p.T @ x.abs() + u * error.T @ x.abs()) / len(x)
    return bound


@pytest.mark.parametrize("recorded", ["", "replayed"])
def test_bf16_moves_a_step_no_further_than_its_rounding(recorded: str) -> None:
    (exact, batch), (mixed, _) = logistic(None), logistic(torch.bfloat16)
    sgd = Sgd(0.5, recorded=recorded)
    one = descend(exact.loss, exact.initial, [batch], sgd)["weight"]
    other = descend(mixed.loss, mixed.initial, [batch], sgd)["weight"]
    gap = (one - other).abs()
    assert other.dtype == torch.float32
    assert gap.max() > 0
    assert (gap <= 0.5 * slope_bound(exact, batch)).all()


def test_models_are_judged_in_float32() -> None:
    (exact, batch), (mixed, _) = logistic(None), logistic(torch.bfloat16)
    for one, other in zip(
        exact.losses(exact.initial, batch.x, batch.y),
        mixed.losses(mixed.initial, batch.x, batch.y),
        strict=True,
    ):
        assert torch.equal(one, other)


class BiasApart(nn.Module):
    """Adds its bias in float32 to a product in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(6, 3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w + self.b


def test_sums_of_mixed_types_are_replayed_as_they_were_taken() -> None:
    module = BiasApart()
    initial = {n: p.detach() for n, p in module.named_parameters()}
    task = Task(module.to("meta"), initial, 3, amp=torch.bfloat16)
    _, batch = logistic(None)
    many = Batch(*(part.expand(2, 1, *part.shape) for part in batch))
    work = Work(task, Sgd(0.1), (), 1)
    together, alone = (
        cohort.update(FedAvg(), work, Model(initial), Nothing(), many, how)[0]
        for how in ("vmap", "loop")
    )
    torch.testing.assert_close(together.w, alone.w)


def test_a_run_in_bf16_learns_what_one_in_float32_does(start: Start) -> None:
    """The loss differs by no more than a few roundings of 2⁻⁹: 2⁻⁵ is sixteen of them."""
    keys: dict[str, Any] = {"scheme": "fedavg", "rounds": 5, "eval_every": 1, "nodes": 1}
    exact, mixed = start(**keys), start(**keys, amp="bf16")
    losses = [event["metrics"]["shared_loss"] for event in mixed.events]
    assert losses[-1] < losses[0]
    assert mixed.sha != exact.sha
    assert mixed.summary["shared"]["loss"]["mean"] == pytest.approx(
        exact.summary["shared"]["loss"]["mean"], rel=2**-5
    )


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"dtype": "float64"}, "amp must be 'none' with dtype 'float64', not 'bf16'."),
        (
            {"scheme": "mocha", "model.name": "linear"},
            "amp must be 'none' for mocha, whose clients take no gradient steps, not 'bf16'.",
        ),
        (
            {"scheme": "perfedavg", "perfedavg.mode": "hessian-free"},
            "amp must be 'none' with perfedavg.mode 'hessian-free', not 'bf16': the differences it "
            "takes are smaller than what bf16 rounds away.",
        ),
    ],
)
def test_bf16_is_refused_where_it_would_do_nothing_or_too_much(
    keys: dict[str, object], why: str
) -> None:
    with pytest.raises(BadInput) as refused:
        parse(keys | {"amp": "bf16"})
    assert str(refused.value) == why
