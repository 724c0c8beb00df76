"""Local optimizers: steps, moments and their decay, as PyTorch's own take them."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import get_total_norm

from bouquet.core.batches import Plan, draw, gather, steps
from bouquet.core.descent import Sgd, descend, slope, slope_in_vmap
from bouquet.core.errors import BadInput
from bouquet.core.optimizers import KINDS, Memory, Optimizer
from bouquet.core.scheme import Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree, pick
from bouquet.laboratory import SMALL, one_client
from bouquet.problem import Problem, problem
from bouquet.settings import Settings, parse
from bouquet.strategies import SCHEMES
from bouquet.strategies.local_optimizers import side_by_side
from tests.conftest import Run, kebab

Start = Callable[..., Run]
REMEMBERING = [kind for kind in KINDS if kind != "sgd"]
every_optimizer = pytest.mark.parametrize("kind", REMEMBERING)

TASK = Task(nn.Identity(), {}, classes=0)  # of work whose objective asks for none
EXACT = 1e-11  # in double precision, what differs by rounding alone
TINY: dict[str, Any] = {
    "dtype": "float64",
    "batch_size": 8,
    "nodes": 1,
    "data": {"clients": 1, "partition": "iid", "test_fraction": 0.9},
    "model": {"name": "mlp", "hidden": 4, "layers": 1},
}


# As PyTorch does it


def torch_optimizer(settings: Settings, weights: Sequence[Tensor]) -> torch.optim.Optimizer:
    """PyTorch's own optimizer for the same keys; decay in the loss is the loss's."""
    run = settings.run
    betas, eps = (run.optimizer_beta1, run.optimizer_beta2), run.optimizer_eps
    match run.optimizer:
        case "momentum" | "nesterov" as kind:
            return torch.optim.SGD(
                weights, run.lr, run.optimizer_momentum, nesterov=kind == "nesterov"
            )
        case "adam":
            return torch.optim.Adam(weights, run.lr, betas, eps)
        case "adamw":
            return torch.optim.AdamW(weights, run.lr, betas, eps, run.decoupled_weight_decay)
    return torch.optim.SGD(weights, run.lr)


class Learner:
    """A model in a plain PyTorch loop, with PyTorch's optimizer, clipping and schedule."""

    def __init__(self, settings: Settings, loaded: Problem) -> None:
        self.run, self.settings = settings.run, settings
        self.module = copy.deepcopy(loaded.task.module).to_empty(device="cpu")
        self.module.load_state_dict(loaded.task.initial)
        self.forget()

    def forget(self) -> None:
        self.optimizer = torch_optimizer(self.settings, list(self.module.parameters()))

    def step(self, batch: Batch, time: int = 0) -> None:
        real = batch.weight > 0
        loss = cross_entropy(self.module(batch.x[real]), batch.y[real])
        squares = sum(w.square().sum() for w in self.module.parameters())
        loss = loss + 0.5 * self.run.weight_decay * squares
        self.optimizer.zero_grad()
        loss.backward()
        if self.run.grad_clip:
            # As clip_grad_norm_ does, but for the 1e-6 that it adds to the norm.
            slopes = [cast(Tensor, w.grad) for w in self.module.parameters()]
            share = self.run.grad_clip / get_total_norm(slopes)
            torch._foreach_mul_(slopes, float(share.clamp(max=1)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.run.lr / (1 + self.run.lr_decay_per_step * time)
        self.optimizer.step()

    def assert_at(self, weights: Tree) -> None:
        for name, value in self.module.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=EXACT)


RULES: dict[str, dict[str, float]] = {
    "plain": {},
    "clipped": {"grad_clip": 0.3},
    "decayed": {"weight_decay": 0.1},
    "both": {"grad_clip": 0.3, "weight_decay": 0.1},
}


def rules(kind: str, rule: str) -> dict[str, float]:
    """The same in the words of each optimizer, whose decay is its own."""
    own = {"weight_decay": "decoupled_weight_decay"} if kind == "adamw" else {}
    return {own.get(name, name): value for name, value in RULES[rule].items()}


@every_optimizer
@pytest.mark.parametrize(
    ("rule", "recorded"), [*((rule, "") for rule in RULES), ("both", "replayed")]
)
def test_a_client_of_fedavg_ends_where_pytorchs_optimizer_ends(
    kind: str, rule: str, recorded: str
) -> None:
    keys = SMALL | TINY | {"scheme": "fedavg", "optimizer": kind, "lr": 0.05} | rules(kind, rule)
    settings = parse(kebab(keys))
    loaded, work, payload, personal = one_client(settings)
    learner = Learner(settings, loaded)
    for batch in work.batches:
        learner.step(batch)
    work = replace(work, sgd=replace(work.sgd, recorded=recorded))
    upload, _ = settings.scheme.local_update(work, payload, personal)
    learner.assert_at(upload.w)
    assert any(not value.equal(payload.w[name]) for name, value in upload.w.items())


def rounds_of(settings: Settings, client: str, round_: int) -> Sequence[Batch]:
    """A client's batches of a round."""
    run, data = settings.run, problem(settings).data
    plan = Plan(run.local_steps, run.local_epochs, run.batch_size)
    own, seeds = [data.clients[client].train], (run.seed, "train", round_)
    drawn = draw([client], own, plan, seeds, settings.dtype)
    return steps(pick(gather(data.x, data.y, drawn), 0))


WHOLE_RUNS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer_state": "keep", "lr_decay_per_step": 0.05, "grad_clip": 0.3},
    "nesterov": {"optimizer_state": "reset", "local_steps": 16, "weight_decay": 0.1},  # recorded
    "adam": {"optimizer_state": "keep", "local_steps": 0, "local_epochs": 1, "weight_decay": 0.1,
             "lr_decay_per_step": 0.05},
    "adamw": {"optimizer_state": "keep", "local_steps": 16, "decoupled_weight_decay": 0.1,
              "lr_decay_per_step": 0.05, "optimizer_beta1": 0.7, "optimizer_eps": 1e-3},
    "sgd": {"lr_decay_per_step": 0.01, "local_steps": 16, "grad_clip": 0.3},
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE_RUNS)
def test_a_run_of_one_client_is_one_loop_in_pytorch(kind: str, start: Start) -> None:
    """Rounds make no difference to moments that are kept; what is reported is the model's loss."""
    keys = TINY | {"scheme": "fedavg", "rounds": 3, "local_steps": 4, "lr": 0.05}
    settings = parse(kebab(keys | {"optimizer": kind} | WHOLE_RUNS[kind]))
    run, loaded = start(settings=settings), problem(settings)
    learner, time = Learner(settings, loaded), 0
    for round_ in (1, 2, 3):
        if settings.run.optimizer_state == "reset":
            learner.forget()
        for batch in rounds_of(settings, "000", round_):
            learner.step(batch, time)
            time += 1
    learner.assert_at({name: torch.from_numpy(run.shared(name)) for name in loaded.task.initial})
    test = loaded.data.clients["000"].test
    with torch.no_grad():
        loss = float(cross_entropy(learner.module(loaded.data.x[test]), loaded.data.y[test]))
    assert float(run.clients[0]["shared_loss"]) == pytest.approx(loss, abs=1e-9)
    assert float(run.clients[0]["personal_loss"]) == pytest.approx(loss, abs=1e-9)


def test_time_passes_for_clients_that_sit_rounds_out_by_their_own_steps_a_round(
    start: Start,
) -> None:
    """Clients of unequal size, two of three a round; t is (round − 1)·τ + step, τ the client's."""
    keys = TINY | {
        "scheme": "local", "rounds": 3, "clients_per_round": 2, "local_steps": 0, "local_epochs": 2,
        "lr_decay_per_step": 0.2, "optimizer": "adam", "optimizer_state": "keep", "lr": 0.05,
        "save_predictors": True,
    }  # fmt: skip
    keys["data"] = {"clients": 3, "partition": "dirichlet", "test_fraction": 0.9}
    settings = parse(kebab(keys))
    run, loaded = start(settings=settings), problem(settings)
    taken: dict[str, set[int]] = {}
    for client, split in loaded.data.clients.items():
        learner, a_round = Learner(settings, loaded), 2 * math.ceil(len(split.train) / 8)
        came = [event["round"] for event in run.events if client in event["clients"]]
        taken.setdefault(client, set()).update((len(came), a_round))
        for round_ in came:
            for place, batch in enumerate(rounds_of(settings, client, round_)):
                learner.step(batch, (round_ - 1) * a_round + place)
        own = {n: torch.from_numpy(run.predictor(client, n)) for n in loaded.task.initial}
        learner.assert_at(own)
    assert len({frozenset(facts) for facts in taken.values()}) > 1  # unequal, or it shows nothing


# Moments


def weights(*values: float) -> Tree:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def batch(target: float, active: float = 1.0, pace: float = 1.0) -> Batch:
    """One example, whose target is the optimum."""
    one = torch.ones(1, dtype=torch.float64)
    return Batch(one, one * target, one, one.sum() * active, pace=one.sum() * pace)


def parabola(point: Tree, step: Batch) -> Tensor:
    """½ ‖w − c‖², with slope w − c."""
    return 0.5 * (point["w"] - step.y).square().sum()


class Pair(NamedTuple):
    """A tree and a number that move side by side."""

    w: Tree
    alpha: Tensor


def sgd(kind: str, **rules: Any) -> Sgd:
    return Sgd(0.1, optimizer=Optimizer(kind), **rules)


@every_optimizer
def test_one_step_by_hand(kind: str) -> None:
    """From 3 on ½(w − 1)², slope 2: momentum goes 0.2, nesterov 0.1·(2 + 0.9·2), adam 0.1."""
    gone = {"momentum": 0.2, "nesterov": 0.38, "adam": 0.1, "adamw": 0.1}
    end = descend(parabola, weights(3.0), [batch(1.0)], sgd(kind))
    assert end["w"].item() == pytest.approx(3.0 - gone[kind], abs=1e-8)


@every_optimizer
@pytest.mark.parametrize("way", [slope, slope_in_vmap, "replayed"])
def test_a_step_that_only_others_take_leaves_weights_and_moments(kind: str, way: Any) -> None:
    """Before the first step, between two, and after the last; decay rests as well."""
    told = {"recorded": way} if isinstance(way, str) else {"gradient": way}
    steps = [batch(9.0, 0.0), batch(1.0), batch(9.0, 0.0), batch(0.0), batch(9.0, 0.0)]
    ends = []
    for taken in (steps, [step for step in steps if step.active]):
        memory, rule = Memory(Optimizer(kind)), sgd(kind, decoupled_decay=0.1, clip=0.5, **told)
        end = descend(parabola, weights(0.7, -2.0), taken, rule, memory=memory)
        ends.append({**end, **memory.tree})
    assert ends[0].keys() == ends[1].keys() > {"w"}
    assert all(value.equal(ends[1][name]) for name, value in ends[0].items())


@every_optimizer
def test_steps_in_several_stretches_are_the_steps_in_one(kind: str) -> None:
    """A scheme may move a part, hold another, and go on."""
    taken = [batch(float(n)) for n in range(4)]
    whole = descend(parabola, weights(3.0, -1.0), taken, sgd(kind))
    work = Work(TASK, sgd(kind), batches=(), memory=Memory(Optimizer(kind)))
    halfway = work.descend(parabola, weights(3.0, -1.0), taken[:2])
    assert work.descend(parabola, halfway, taken[2:])["w"].equal(whole["w"])
    anew = replace(work, memory=None)
    assert not anew.descend(parabola, halfway, taken[2:])["w"].equal(whole["w"])


def test_two_things_of_one_name_are_refused_and_names_tell_them_apart() -> None:
    rule = sgd("adam")
    work = Work(TASK, rule, batches=(), memory=Memory(rule.optimizer))
    work.descend(parabola, weights(3.0), [batch(1.0)])
    with pytest.raises(BadInput, match=r"moves two things called 'w'.*part='v'"):
        work.descend(parabola, weights(5.0), [batch(1.0)])
    own = work.descend(parabola, weights(5.0), [batch(1.0)], part="v")
    assert own["w"].equal(descend(parabola, weights(5.0), [batch(1.0)], rule)["w"])


@every_optimizer
@pytest.mark.parametrize("recorded", ["", "replayed"])
def test_a_single_tensor_takes_plain_steps(kind: str, recorded: str) -> None:
    """Slope 3 at rate 0.1, twice: 0.6, and no moments."""

    def objective(point: Pair, step: Batch) -> Tensor:
        return parabola(point.w, step) + 3 * point.alpha

    start, memory = Pair(weights(4.0), torch.tensor(1.0).double()), Memory(Optimizer(kind))
    rule = sgd(kind, recorded=recorded)
    end = descend(objective, start, [batch(0.0)] * 2, rule, memory=memory)
    assert end.alpha.item() == pytest.approx(0.4, abs=1e-15)
    assert {name.split("/")[1] for name in memory.tree} == {"w"}


def test_moments_of_another_optimizer_or_shape_are_forgotten() -> None:
    adam, momentum = Memory(Optimizer("adam")), Optimizer("momentum")
    descend(parabola, weights(3.0), [batch(1.0)], sgd("adam"), memory=adam)
    assert Memory(momentum, adam.tree).tree == {}
    again = Memory(Optimizer("adam"), adam.tree)
    assert again.recall("w", weights(3.0))["step"].item() == 1.0
    assert again.recall("w", weights(3.0, 4.0))["step"].item() == 0.0
    assert again.recall("v", weights(3.0))["step"].item() == 0.0


def test_whoever_takes_part_for_the_first_time_has_zeros_beside_those_who_did_before() -> None:
    class Kept(NamedTuple):
        optimizer: Tree

    old, new = side_by_side([Kept({"adam/w/step": torch.tensor(4.0)}), Kept({})])
    assert (old.optimizer["adam/w/step"].item(), new.optimizer["adam/w/step"].item()) == (4.0, 0.0)


# In schemes


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_the_half_that_is_fedavg_or_local_is_so_with_any_optimizer(kind: str, start: Start) -> None:
    """APFL moves w and v in two stretches, Ditto one after the other: no moment is mixed up."""
    keys: dict[str, Any] = {
        "optimizer": kind, "optimizer_state": "keep", "weights": "uniform", "rounds": 2,
        "local_steps": 3, "lr": 0.02, "clients_per_round": 2, "save_predictors": True,
        "dtype": "float64", "data": {"clients": 3}, "model": {"name": "linear"},
    }  # fmt: skip
    average, alone = start(scheme="fedavg", **keys), start(scheme="local", **keys)
    apfl = start(scheme="apfl", apfl={"alpha": 1.0, "adaptive": False}, **keys)
    ditto = start(scheme="ditto", ditto={"lambda": 0.0}, **keys)
    adaptive = start(scheme="apfl", **keys)
    assert apfl.sha == ditto.sha == adaptive.sha == average.sha
    for own in (apfl, ditto):
        for client in ("000", "001", "002"):
            assert (
                own.predictor(client, "output.bias") == alone.predictor(client, "output.bias")
            ).all()


def test_what_a_client_keeps_has_the_names_of_its_parts(start: Start) -> None:
    run = start(scheme="apfl", optimizer="adam", optimizer_state="keep", rounds=2, local_steps=3,
                data={"clients": 2}, model={"name": "linear"})  # fmt: skip
    kept = run.personal("000")
    moments = {name for name in kept if name.startswith("optimizer/")}
    assert moments == {
        f"optimizer/adam/{part}/{moment}"
        for part in ("w", "v")
        for moment in ("step", *(f"{m}/{n}" for m in ("exp_avg", "exp_avg_sq") for n in LINEAR))
    }
    assert kept["optimizer/adam/v/step"] == 6
    forgetful = start(scheme="apfl", optimizer="adam", rounds=2, local_steps=3,
                      data={"clients": 2}, model={"name": "linear"})  # fmt: skip
    assert forgetful.personal("000").keys() == kept.keys() - moments


LINEAR = ("output.weight", "output.bias")


def test_a_stage_without_the_moments_goes_on_with_the_personal_part(start: Start) -> None:
    """And one with another optimizer; steps of next to no size show where it began."""
    keys: dict[str, Any] = {
        "optimizer": "adam", "optimizer_state": "keep", "local_steps": 3, "data": {"clients": 2},
        "model": {"name": "mlp", "hidden": 4, "layers": 1},
    }  # fmt: skip
    first = start(pipeline="fedsim:2", **keys).personal("000")
    for own in ({"optimizer": "sgd"}, {"optimizer": "momentum"}, {"optimizer_state": "reset"}):
        later = {"stage2": {"lr": 1e-12} | own}
        run = start(pipeline="fedsim:2 finetune:1", **keys, **later)
        state = run.personal("000")
        for name in (name for name in first if name.startswith("v/")):
            assert state[name] == pytest.approx(first[name], abs=1e-9)


# Refused


def test_schemes_that_need_plain_steps_say_why() -> None:
    why = {}
    for name in SCHEMES:
        model = {"model.name": "linear"} if name == "mocha" else {}
        try:
            parse({"scheme": name, "optimizer": "adam", **model})
        except BadInput as error:
            why[name] = str(error)
    assert why.keys() == {"fedu", "dfedu", "plsgd", "pfedme", "scaffold", "minibatch", "mocha"}
    for name, sentence in why.items():
        assert sentence.startswith(f"optimizer must be 'sgd' for {name}, ")
        assert sentence.endswith(", not 'adam'.")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"optimizer": "sgdm"}, r"optimizer must be one of 'sgd', 'momentum', .*, not 'sgdm'"),
        ({"optimizer-state": "kept"}, r"optimizer-state must be one of 'reset', 'keep', not"),
        ({"optimizer-momentum": 1.0}, r"optimizer-momentum must be a number from 0 to 0\.9999"),
        ({"optimizer-beta1": -0.1}, r"optimizer-beta1 must be a number from 0 to 0\.9999, not"),
        ({"optimizer-beta2": 1.0}, r"optimizer-beta2 must be a number from 0 to 0\.999999, not"),
        ({"optimizer-eps": 0.0}, r"optimizer-eps must be a number of at least 1e-12, not 0"),
        ({"lr-decay-per-step": -1.0}, r"lr-decay-per-step must be a number of at least 0, not"),
        (
            {"optimizer": "adam", "decoupled-weight-decay": 0.1},
            r"decoupled-weight-decay must be 0 with optimizer 'adam'.*'adamw', not 0\.1",
        ),
        (
            {"optimizer": "adamw", "weight-decay": 0.1},
            r"weight-decay must be 0 with optimizer 'adamw'.*decoupled-weight-decay.*not 0\.1",
        ),
        (
            {"optimizer": "adam", "optimizer-state": "keep", "scheme": "fedsim",
             "fedsim.stateless": True},
            r"optimizer-state must be 'reset' with fedsim\.stateless.*not 'keep'",
        ),
        (
            {"scheme": "mocha", "model.name": "linear", "lr-decay-per-step": 0.1},
            r"lr-decay-per-step must be 0 for mocha, whose clients take no gradient steps, not",
        ),
        (
            {"scheme": "perfedavg", "perfedavg.mode": "hessian-free", "amp": "bf16",
             "optimizer": "adam"},
            r"amp must be 'none' with perfedavg\.mode 'hessian-free'",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse(keys)


def test_a_stages_optimizer_is_refused_before_the_run() -> None:
    with pytest.raises(BadInput, match="optimizer must be 'sgd' for scaffold"):
        parse({"pipeline": "scaffold:2 fedavg:2", "stage1.optimizer": "momentum"})
    parse({"pipeline": "scaffold:2 fedavg:2", "stage2.optimizer": "momentum"})
