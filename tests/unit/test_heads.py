"""Schemes with a part of one's own: FedPer, FedRep, LG-FedAvg, FedBABU and FedRoD."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from bouquet.core.descent import Sgd
from bouquet.core.errors import BadInput
from bouquet.core.scheme import Model, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Nothing, Tree
from bouquet.problem import make_task, problem
from bouquet.settings import parse
from bouquet.strategies import fedrod, fedsim
from bouquet.strategies.fedbabu import FedBABU
from bouquet.strategies.fedrep import FedRep
from bouquet.strategies.fedrod import FedRoD
from tests.conftest import Quadratics, Run
from tests.unit.test_partial import moved, work_of

Start = Callable[..., Run]
KEYS: dict[str, Any] = {
    "rounds": 2,
    "local_steps": 3,
    "batch_size": 8,
    "save_predictors": True,
    "data": {"clients": 4, "partition": "dirichlet"},
    "model": {"hidden": 8},
}
HEAD = {"output.weight", "output.bias"}


def assert_same_run(one: Run, other: Run) -> None:
    """To the last bit: what the server holds, and every client's own model."""
    assert one.sha == other.sha
    assert one.server().keys() == other.server().keys()
    assert one.summary["personal"] == other.summary["personal"]
    for client in ("000", "003"):
        for name in ("hidden1.weight", *HEAD):
            np.testing.assert_array_equal(
                one.predictor(client, name), other.predictor(client, name)
            )


# FedPer and LG-FedAvg: FedSim with a split


def test_fedper_is_fedsim_with_a_head_of_ones_own(start: Start) -> None:
    run = start(scheme="fedper", **KEYS)
    assert_same_run(run, start(scheme="fedsim", personal={"split": "output"}, **KEYS))
    assert {name.removeprefix("v/") for name in run.personal("000")} == HEAD


def test_lg_fedavg_is_fedsim_with_a_representation_of_ones_own(start: Start) -> None:
    """The first layer stays at home, whatever ``personal.split`` says of other schemes."""
    run = start(scheme="lg-fedavg", **KEYS)
    assert_same_run(run, start(scheme="fedsim", personal={"split": "input"}, **KEYS))
    kept = {name.removeprefix("v/") for name in run.personal("000")}
    assert kept == {"hidden1.weight", "hidden1.bias"}


def test_lg_fedavgs_own_split_says_which_layers(start: Start) -> None:
    told = {"lg_fedavg": {"split": "hidden*"}}
    run = start(scheme="lg-fedavg", **told, **KEYS)
    assert {name.removeprefix("w/") for name in run.server()} == HEAD
    with pytest.raises(BadInput, match=r"^lg-fedavg\.split must be .* not 'nowhere\.\*'"):
        start(scheme="lg-fedavg", lg_fedavg={"split": "nowhere.*"}, **KEYS)


# FedRep


def test_fedrep_moves_the_head_many_times_and_then_the_representation() -> None:
    """Written out, τ = 3: a step on h for each of six batches, on φ for the first and fourth."""
    scheme, work = FedRep(head_steps=3), work_of(count=6)
    assert scheme.draws(2) == 6
    u, v = fedsim.split(work.task, work.task.initial)
    upload, personal = scheme.local_update(work, Model(u), fedsim.Personal(v))
    whole = dict(work.task.initial)
    for batch in work.batches:
        whole = moved(work, whole, batch, 0.1, personal=True)
    for batch in (work.batches[0], work.batches[3]):
        whole = moved(work, whole, batch, 0.1, personal=False)
    assert upload.w.keys() | personal.v.keys() == whole.keys()
    for name, value in {**upload.w, **personal.v}.items():
        torch.testing.assert_close(value, whole[name], atol=1e-14, rtol=0)


def test_fedrep_with_a_head_step_for_each_other_is_fedalt(start: Start) -> None:
    """With FedRep's uniform mean of clients that are of unequal size."""
    run = start(scheme="fedrep", fedrep={"head_steps": 1}, **KEYS)
    assert_same_run(run, start(scheme="fedalt", weights="uniform", **KEYS))
    assert run.sha != start(scheme="fedalt", **KEYS).sha


def test_fedrep_on_whole_batches_is_fedalt_with_more_personal_steps(start: Start) -> None:
    keys = KEYS | {"batch_size": 0}
    run = start(scheme="fedrep", fedrep={"head_steps": 4}, **keys)
    alternated = start(scheme="fedalt", weights="uniform", fedalt={"personal_steps": 12}, **keys)
    assert_same_run(run, alternated)


def test_fedreps_clients_take_their_own_passes_in_any_company(start: Start) -> None:
    """A pass over little data is few steps on φ, also beside clients with more."""
    keys = KEYS | {"local_steps": 0, "local_epochs": 1, "batch_size": 64, "dtype": "float64"}
    keys |= {"rounds": 1, "nodes": 1, "fedrep": {"head_steps": 2}}
    together, alone = (start(scheme="fedrep", cohort_chunk=size, **keys) for size in (0, 1))
    for name, value in together.server().items():
        np.testing.assert_allclose(value, alone.server()[name], atol=1e-12, rtol=0)


# FedBABU


def test_fedbabu_moves_the_body_and_leaves_the_head_at_random() -> None:
    work = work_of(count=2)
    u, _ = fedsim.split(work.task, work.task.initial)
    upload, _ = FedBABU().local_update(work, Model(u), Nothing())
    whole = dict(work.task.initial)
    for batch in work.batches:
        whole = moved(work, whole, batch, 0.1, personal=False)
    assert upload.w.keys() == u.keys()
    for name, value in upload.w.items():
        torch.testing.assert_close(value, whole[name], atol=1e-14, rtol=0)


@pytest.mark.parametrize("tunes", ["full", "body", "head"])
def test_fedbabu_tunes_what_it_is_told_before_it_predicts(tunes: str) -> None:
    work = work_of(count=2)
    u, v = fedsim.split(work.task, work.task.initial)
    body = {name: value + 0.01 for name, value in u.items()}  # as trained by others
    found = FedBABU(tunes=tunes).predictor(work, Model(body), Nothing())
    whole: Tree = {**body, **v}
    for batch in work.batches:
        slope = grad(work.task.loss)(whole, batch)
        rests = {"full": set(), "body": v.keys(), "head": u.keys()}[tunes]
        whole = {n: w if n in rests else w - 0.1 * slope[n] for n, w in whole.items()}
    assert found.keys() == whole.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, whole[name], atol=1e-14, rtol=0)


def test_fedbabu_without_a_head_is_fedavg_and_fine_tuning(start: Start) -> None:
    run = start(scheme="fedbabu", fedbabu={"steps": 4}, personal={"split": "none"}, **KEYS)
    assert_same_run(run, start(scheme="finetune", finetune={"steps": 4}, **KEYS))


def test_fedbabu_without_tuning_predicts_with_the_random_head(start: Start) -> None:
    run = start(scheme="fedbabu", fedbabu={"steps": 0}, **KEYS)
    assert run.summary["personal"] == run.summary["shared"]
    assert not any("output" in name for name in run.server())
    keys = {"scheme": "fedbabu", "data.clients": 4, "data.partition": "dirichlet"}
    random = problem(parse(keys | {"model.hidden": 8})).task.initial
    for name in HEAD:
        np.testing.assert_array_equal(run.predictor("000", name), random[name].numpy())


# FedRoD


class OneFeature(nn.Module):
    """Two classes by one number."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(1, 2, bias=False, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.output(x)
        return said


def examples(*y: int) -> Batch:
    count, double = len(y), torch.float64
    x = torch.ones(count, 1, dtype=double)
    weight = torch.full((count,), 1 / count, dtype=double)
    return Batch(x, torch.tensor(y), weight, torch.ones((), dtype=double))


def test_fedrod_takes_the_step_derived_by_hand() -> None:
    """One example of class 1 with x = 1; of the client's four, three are of class 0. η = 0.1.

    - ψ = 0, so all scores are 0 and the balanced softmax is (3, 1)/4: the slope is
      (3/4, 1/4) − (0, 1) = (0.75, −0.75), whatever φ is.
    - φ = (ln 9, 0), so the plain softmax of ψ + φ is (9, 1)/10: the slope is (0.9, −0.9).
    """
    module = OneFeature()
    zero = {"output.weight": torch.zeros(2, 1, dtype=torch.float64)}
    task = Task(module, zero, classes=2, personal=frozenset(zero))
    work = Work(task, Sgd(0.1), [examples(1)], data=[examples(0, 0), examples(0, 1)])
    phi = {"output.weight": torch.tensor([[9.0], [1.0]], dtype=torch.float64).log()}
    upload, personal = FedRoD().local_update(work, Model(zero), fedrod.Personal(phi))
    assert upload.w["output.weight"].flatten().tolist() == pytest.approx([-0.075, 0.075])
    expected = [np.log(9) - 0.09, 0.09]
    assert personal.phi["output.weight"].flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_fedrods_parts_each_go_down_the_slope_of_their_own_loss(gamma: float) -> None:
    """On digits: the balanced softmax in all weights, the plain loss in the head's correction."""
    work = work_of(count=2)
    y = torch.cat([batch.y for batch in work.batches])
    counts = torch.stack([(y == one).sum() for one in range(10)]).double()
    work = replace(work, data=work.batches, batches=work.batches[:1])
    names = sorted(work.task.personal)
    phi = {n: torch.full_like(work.task.initial[n], 0.01) for n in names}
    upload, personal = FedRoD(gamma).local_update(
        work, Model(work.task.initial), fedrod.Personal(phi)
    )
    batch = work.batches[0]

    def balanced(w: Tree) -> Tensor:
        return cross_entropy(work.task.output(w, batch.x) + gamma * counts.log(), batch.y)

    def own(phi: Tree) -> Tensor:
        w = work.task.initial
        return work.task.loss({**w, **{n: w[n] + phi[n] for n in phi}}, batch)

    generic, head = grad(balanced)(work.task.initial), grad(own)(phi)
    for name, value in upload.w.items():
        expected = work.task.initial[name] - 0.1 * generic[name]
        torch.testing.assert_close(value, expected, atol=1e-12, rtol=0)
    for name, value in personal.phi.items():
        torch.testing.assert_close(value, phi[name] - 0.1 * head[name], atol=1e-12, rtol=0)


def test_fedrod_with_gamma_0_shares_what_fedavg_shares(start: Start) -> None:
    keys = KEYS | {"clients_per_round": 3}
    run = start(scheme="fedrod", fedrod={"gamma": 0.0}, **keys)
    assert run.sha == start(scheme="fedavg", **keys).sha
    assert run.sha != start(scheme="fedrod", **keys).sha


def test_fedrod_predicts_with_the_sum_of_both_heads(start: Start) -> None:
    run = start(scheme="fedrod", **KEYS)
    for client in ("000", "001"):
        phi = run.personal(client)
        assert {name.removeprefix("phi/") for name in phi} == HEAD
        assert abs(phi["phi/output.weight"]).max() > 1e-3
        for name in HEAD:
            both = run.shared(name) + phi[f"phi/{name}"]
            np.testing.assert_array_equal(run.predictor(client, name), both)
        hidden = run.predictor(client, "hidden1.weight")
        np.testing.assert_array_equal(hidden, run.shared("hidden1.weight"))


def test_classes_a_client_of_fedrod_has_none_of_stay_as_they_are(start: Start) -> None:
    """One client with two digits: the other digits' scores are in no loss of the shared model."""
    data = {"clients": 10, "partition": "pathological"}
    run = start(scheme="fedrod", clients_per_round=1, **KEYS | {"data": data, "rounds": 1})
    (client,) = run.events[0]["clients"]
    loaded = problem(parse({"scheme": "fedrod", "data.clients": 10, "model.hidden": 8}))
    held = loaded.data.y[loaded.data.clients[client].train].unique().tolist()
    before, after = loaded.task.initial["output.bias"].numpy(), run.shared("output.bias")
    assert [k for k in range(10) if abs(after[k] - before[k]) > 1e-6] == held


def test_fedrod_counts_the_labels_of_texts_and_no_padding() -> None:
    """Label −100 is none, and a padded place repeats an example."""
    x, weight = torch.zeros(3, 4), torch.tensor([0.5, 0.5, 0.0])
    y = torch.tensor([[0, 1, 1, -100], [2, 1, 0, -100], [0, 1, 1, -100]])
    batch = Batch(x, y, weight, torch.ones(()))
    work = Work(Task(nn.Module(), {}, classes=4), Sgd(0.1), (), data=[batch, batch])
    assert FedRoD().prior(work).exp().tolist() == pytest.approx([4.0, 6.0, 2.0, 0.0])


def test_fedrods_newcomers_learn_a_head_and_nothing_else(start: Start) -> None:
    run = start(scheme="fedrod", join={"clients": 1, "rounds": 3}, **KEYS)
    hidden = run.predictor("003", "hidden1.weight")
    np.testing.assert_array_equal(hidden, run.shared("hidden1.weight"))
    assert abs(run.predictor("003", "output.bias") - run.shared("output.bias")).max() > 1e-3


def test_fedrod_is_refused_where_there_are_no_classes(start: Start, quadratics: Quadratics) -> None:
    with pytest.raises(BadInput, match=r"^scheme must not be 'fedrod' for data without classes"):
        start(scheme="fedrod", **quadratics.keys)


def test_fedrod_is_refused_where_the_output_is_no_layer_of_its_own() -> None:
    settings = parse({"scheme": "fedrod", "model.name": "transformer", "model.width": 8})
    with pytest.raises(BadInput, match=r"^scheme must not be 'fedrod' for a model whose output"):
        FedRoD().init_server(make_task(settings, (5,), 7, None))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("fedper.personal-lr", -1.0, "a number of at least 0"),
        ("fedrep.head-steps", 0, "a whole number from 1 to 1e+06"),
        ("lg-fedavg.split", 3, "text"),
        ("fedbabu.steps", -1, "a whole number from 0 to 1e+06"),
        ("fedbabu.tunes", "legs", "one of 'full', 'body', 'head'"),
        ("fedrod.gamma", -0.5, "a number of at least 0"),
    ],
)
def test_a_wrong_value_is_refused_by_the_keys_name(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(BadInput) as why:
        parse({key: value})
    assert str(why.value) == f"{key} must be {allowed}, not {value!r}."
