"""Partial personalization: splits, FedSim and FedAlt."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.func import grad

from bouquet.core.batches import Plan, draw, gather, steps
from bouquet.core.descent import Sgd
from bouquet.core.errors import BadInput
from bouquet.core.scheme import Model, Work
from bouquet.core.task import Batch
from bouquet.core.trees import Tree, norm, pick
from bouquet.models import MODELS, ModelConfig, build, personal_names
from bouquet.problem import problem
from bouquet.settings import parse
from bouquet.strategies import fedsim
from bouquet.strategies.fedalt import FedAlt
from tests.conftest import Run

Start = Callable[..., Run]
NAMES = ["conv1.weight", "conv1.bias", "hidden.weight", "output.weight", "output.bias"]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("none", set()),
        ("full", set(NAMES)),
        ("input", {"conv1.weight", "conv1.bias"}),
        ("output", {"output.weight", "output.bias"}),
        ("*.bias", {"conv1.bias", "output.bias"}),
        ("hidden.* conv1.weight", {"hidden.weight", "conv1.weight"}),
    ],
)
def test_a_split_chooses_by_name(split: str, expected: set[str]) -> None:
    assert personal_names(NAMES, split) == expected


def test_a_pattern_that_matches_nothing_is_refused_with_the_names() -> None:
    with pytest.raises(BadInput, match=r"personal\.split must be .*conv1\.weight.*not 'last'"):
        personal_names(NAMES, "last")


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("split", ["input", "output", "full", "none", "*.weight"])
def test_merging_what_was_split_gives_the_model_back(name: str, split: str) -> None:
    assert name in MODELS
    module = build(ModelConfig(name=name), (64,), 10, seed=0, dtype=torch.float32)
    whole: Tree = dict(module.named_parameters())
    task = problem(parse({"data.clients": 4})).task
    task = replace(task, personal=personal_names(list(whole), split))
    merged = fedsim.merge(fedsim.split(task, whole))
    assert merged.keys() == whole.keys()
    assert all(merged[n] is whole[n] for n in whole)


KEYS: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 4, "partition": "dirichlet"},
    "model": {"hidden": 8},
}


@pytest.mark.parametrize("scheme", ["fedsim", "fedalt"])
def test_nothing_personal_is_fedavg(start: Start, scheme: str) -> None:
    run = start(scheme=scheme, personal={"split": "none"}, **KEYS)
    plain = start(scheme="fedavg", **KEYS)
    assert run.sha == plain.sha
    assert run.summary["personal"] == plain.summary["personal"]


@pytest.mark.parametrize("scheme", ["fedsim", "fedalt"])
def test_everything_personal_is_local(start: Start, scheme: str) -> None:
    run = start(scheme=scheme, personal={"split": "full"}, **KEYS)
    alone = start(scheme="local", **KEYS)
    assert run.summary["personal"] == alone.summary["personal"]
    assert run.summary["shared"] == alone.summary["shared"]


def test_fedsims_first_step_is_one_joint_gradient_step() -> None:
    """u − γ_u ∇_u and v − γ_v ∇_v, both slopes at the same point."""
    scheme, work = fedsim.FedSim(personal_lr=0.5), work_of(count=1)
    initial = work.task.initial
    u, v = fedsim.split(work.task, initial)
    upload, personal = scheme.local_update(work, Model(u), fedsim.Personal(v))
    slope = grad(work.task.loss)(initial, work.batches[0])
    for name, value in {**upload.w, **personal.v}.items():
        rate = 0.5 if name in work.task.personal else 0.1
        torch.testing.assert_close(value, initial[name] - rate * slope[name], atol=1e-14, rtol=0)


def test_fedsim_clips_by_the_norm_over_both_parts() -> None:
    """As the authors do: the bound is on the whole gradient, whatever the rates."""
    told = parse({"scheme": "fedsim", "lr": 0.1, "grad-clip": 0.2})
    scheme, work = fedsim.FedSim(personal_lr=0.5), replace(work_of(count=1), sgd=told.sgd)
    initial = work.task.initial
    u, v = fedsim.split(work.task, initial)
    upload, personal = scheme.local_update(work, Model(u), fedsim.Personal(v))
    slope = grad(work.task.loss)(initial, work.batches[0])
    shrink = 0.2 / norm(slope)
    assert shrink < 1
    for name, value in {**upload.w, **personal.v}.items():
        rate = shrink * (0.5 if name in work.task.personal else 0.1)
        torch.testing.assert_close(value, initial[name] - rate * slope[name], atol=1e-14, rtol=0)


@pytest.mark.parametrize(("own", "shared"), [(2, 3), (4, 2), (0, 2)])
def test_fedalt_moves_v_at_the_received_u_and_then_u_at_the_new_v(own: int, shared: int) -> None:
    """Written out: steps on v, as many as on u unless told, then those on u, from batch one."""
    scheme = FedAlt(personal_lr=0.5, personal_steps=own)
    assert scheme.draws(shared) == max(own, shared)
    work = replace(work_of(count=max(own, shared)), steps=shared)
    u, v = fedsim.split(work.task, work.task.initial)
    upload, personal = scheme.local_update(work, Model(u), fedsim.Personal(v))
    whole = dict(work.task.initial)
    for batch in work.batches[: own or shared]:
        whole = moved(work, whole, batch, 0.5, personal=True)
    for batch in work.batches[:shared]:
        whole = moved(work, whole, batch, 0.1, personal=False)
    for name, value in {**upload.w, **personal.v}.items():
        torch.testing.assert_close(value, whole[name], atol=1e-14, rtol=0)


def test_only_shared_names_leave_the_device(start: Start) -> None:
    run = start(scheme="fedalt", personal={"split": "output"}, **KEYS)
    shared = {name.removeprefix("w/") for name in run.server()}
    kept = {name.removeprefix("v/") for name in run.personal("000")}
    assert kept == {"output.weight", "output.bias"}
    assert shared.isdisjoint(kept)
    assert "hidden1.weight" in shared


def test_stateless_clients_start_their_personal_part_anew(start: Start) -> None:
    """With u frozen in place by a tiny step, a second round repeats the first one's v."""
    keys: dict[str, Any] = {
        "lr": 1e-30,
        "batch_size": 0,
        "data": {"clients": 4},
        "model": {"hidden": 8},
    }
    one = start(scheme="fedsim", rounds=1, fedsim={"personal_lr": 0.1, "stateless": True}, **keys)
    two = start(scheme="fedsim", rounds=2, fedsim={"personal_lr": 0.1, "stateless": True}, **keys)
    on = start(scheme="fedsim", rounds=2, fedsim={"personal_lr": 0.1}, **keys)
    name = "v/output.weight"
    # The mean of equal weights is equal up to float rounding.
    assert abs(one.personal("000")[name] - two.personal("000")[name]).max() < 1e-5
    assert abs(one.personal("000")[name] - on.personal("000")[name]).max() > 1e-2


def moved(work: Work, whole: Tree, batch: Batch, rate: float, personal: bool) -> Tree:
    slope = grad(work.task.loss)(whole, batch)
    mine = {name: (name in work.task.personal) == personal for name in whole}
    return {n: value - rate * slope[n] if mine[n] else value for n, value in whole.items()}


def work_of(count: int) -> Work:
    keys = {"scheme": "fedsim", "dtype": "float64", "data.clients": 4, "model.hidden": 8}
    loaded = problem(parse(keys))
    assert 0 < len(loaded.task.personal) < len(loaded.task.initial)  # or there are no two parts
    own = loaded.data.clients["000"].train
    drawn = draw(["000"], [own], Plan(count, 0, 10), (0, "train", 1), torch.float64)
    batches = steps(pick(gather(loaded.data.x, loaded.data.y, drawn), 0))
    return Work(loaded.task, Sgd(0.1), batches, steps=count)
