"""Schemes between one model and many: IFCA, MR-MTL and FedALA against algebra."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bouquet.core.batches import Plan, draw, gather, steps
from bouquet.core.errors import BadInput
from bouquet.core.scheme import Model, Work
from bouquet.core.trees import Nothing, pick
from bouquet.problem import problem
from bouquet.settings import parse
from bouquet.strategies import fedala
from bouquet.strategies.fedala import FedALA
from bouquet.strategies.ifca import IFCA, Clusters
from bouquet.strategies.mr_mtl import MRMTL
from tests.conftest import Array, Quadratics, Run, make_quadratics
from tests.unit.algebra import EXACT, clients, descended, number, scalar_work, vector_task
from tests.unit.test_heads import KEYS

Start = Callable[..., Run]


def scalar(curvature: float, optimum: float, lr: float = 0.1) -> Work:
    """One step on ½ a (w − c)², whose data are one example."""
    work = scalar_work(steps=1, lr=lr, curvature=curvature, optimum=optimum)
    return replace(work, data=work.batches)


# IFCA


def clusters(*models: float) -> Clusters:
    stacked = torch.tensor(models, dtype=torch.float64).reshape(-1, 1)
    return Clusters({"w": stacked}, torch.zeros(len(models), dtype=torch.float64))


def test_a_client_of_ifca_trains_the_model_that_fits_it_best() -> None:
    """Of −1, 10 and 12 the second is nearest to 9; a step on ½(w − 9)² with η = 0.1: 10 − 0.1."""
    upload, _ = IFCA(3).local_update(scalar(1.0, 9.0), clusters(-1.0, 10.0, 12.0), Nothing())
    assert upload.share.tolist() == [0, 1, 0]
    assert upload.models["w"].flatten().tolist() == pytest.approx([0, 9.9, 0])
    chosen = IFCA(3).predictor(scalar(1.0, 9.0), clusters(-1.0, 10.0, 12.0), Nothing())
    assert chosen["w"].item() == 10.0


@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_ifca_follows_the_recursion_of_its_paper(
    start: Start, tmp_path: Path, averaging: str
) -> None:
    """Algorithm 1 in NumPy: options II and I, some clients a round, models that nobody chooses."""
    problem = make_quadratics(tmp_path / "problem.json", clients=5, size=2, seed=3)
    keys = {"ifca": {"clusters": 3, "averaging": averaging}, "clients_per_round": 4}
    local = 1 if averaging == "gradients" else 4
    run = start(scheme="ifca", rounds=4, local_steps=local, lr=0.3, **keys, **problem.keys)
    models = IFCA(3).init_server(vector_task(problem.init)).models["w"].numpy().copy()
    sizes = []
    for event in run.events:
        sampled = [int(client) for client in event["clients"]]
        chose = {k: nearest(problem, k, models) for k in sampled}
        ends = {
            k: descended(models[j], problem.a[k], problem.c[k], 0.3, local)
            for k, j in chose.items()
        }
        for j in range(3):
            members = [k for k in sampled if chose[k] == j]
            sizes.append(len(members))
            if members and averaging == "models":
                models[j] = np.mean([ends[k] for k in members], axis=0)
            elif averaging == "gradients":
                models[j] = models[j] + sum(ends[k] - models[j] for k in members) / len(sampled)
    assert 0 in sizes
    assert {1, 2, 3} & set(sizes)
    np.testing.assert_allclose(run.server()["models/w"], models, atol=EXACT, rtol=0)
    for k in range(5):
        own = models[nearest(problem, k, models)]
        np.testing.assert_allclose(run.predictor(f"{k:03}"), own, atol=EXACT, rtol=0)


def nearest(problem: Quadratics, k: int, models: Array) -> int:
    """The model of least loss for a client."""
    return int(np.argmin([(w - problem.c[k]) @ problem.a[k] @ (w - problem.c[k]) for w in models]))


def test_ifca_with_one_model_is_fedavg(start: Start) -> None:
    """But for the order of sums: clients that choose are multiplied one by one, others at once."""
    keys = KEYS | {"weights": "uniform", "clients_per_round": 3, "dtype": "float64"}
    run, plain = start(scheme="ifca", ifca={"clusters": 1}, **keys), start(scheme="fedavg", **keys)
    for name, value in plain.server().items():
        model = run.server()[name.replace("w/", "models/", 1)][0]
        np.testing.assert_allclose(model, value, atol=1e-12, rtol=0)
    for one, other in zip(run.clients, plain.clients, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"client", "node"}:
            assert float(one[name]) == pytest.approx(float(other[name]), abs=1e-12), name
        assert (one["client"], one["node"]) == (other["client"], other["node"])


def test_ifca_starts_at_models_that_differ_and_that_a_seed_decides() -> None:
    def starts(seed: int, **keys: Any) -> tuple[torch.Tensor, torch.Tensor]:
        task = problem(parse({"seed": seed, "data.clients": 4, "model.hidden": 8})).task
        weight = IFCA(3, **keys).init_server(task).models["hidden1.weight"]
        return weight, task.initial["hidden1.weight"]

    models, initial = starts(0)
    assert torch.equal(models[0], initial)
    assert torch.equal(models, starts(0)[0])
    first, second, third = models
    others = [second, third, starts(1)[0][1]]
    for one in others:
        assert one.mean() == pytest.approx(initial.mean().item(), abs=0.02)
        assert one.std() == pytest.approx(initial.std().item(), rel=0.1)
    for k, one in enumerate([first, *others]):
        for other in [first, *others][k + 1 :]:
            assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 0.2
    near = starts(0, apart=0.25)[0][1]
    torch.testing.assert_close(near, 0.75 * initial + 0.25 * second)


def test_ifcas_shared_model_is_the_one_that_most_chose() -> None:
    held = clusters(-1.0, 10.0, 12.0)._replace(share=torch.tensor([0.2, 0.3, 0.5]))
    assert IFCA(3).shared(scalar(1.0, 0.0).task, held)["w"].item() == 12.0


def test_ifca_needs_a_single_step_to_average_gradients(
    start: Start, quadratics: Quadratics
) -> None:
    with pytest.raises(BadInput, match=r"^local-steps must be 1 with ifca.averaging 'gradients'"):
        start(scheme="ifca", ifca={"averaging": "gradients"}, **quadratics.keys)


# What clients look through


def test_the_loss_on_the_data_is_the_mean_over_examples() -> None:
    """Also where the last batch is smaller, and padded for a client with more."""
    loaded = problem(parse({"data.clients": 4, "data.partition": "dirichlet", "dtype": "float64"}))
    data, task = loaded.data, loaded.task
    held = [data.clients[client].train for client in ("000", "001")]
    drawn = draw(["000", "001"], held, Plan(0, 1, 50), (0, "look", 1), torch.float64)
    for place, own in enumerate(held):
        seen = steps(pick(gather(data.x, data.y, drawn), place))
        work = replace(scalar(1.0, 0.0), task=task, data=seen)
        expected = task.losses(task.initial, data.x[own], data.y[own])[0].mean()
        assert work.loss_on_data(task.initial).item() == pytest.approx(expected.item(), rel=1e-12)
    assert len({len(own) for own in held}) == 2


@pytest.mark.parametrize("size", [0, 7])
def test_a_part_of_the_data_is_drawn_anew_every_round_and_has_each_example_once(size: int) -> None:
    def seen(round_: int, share: float) -> list[int]:
        plan = Plan(0, 1, size, share=share)
        drawn = draw(["a"], [torch.arange(30)], plan, (0, "look", round_), torch.float64)
        return drawn.own[drawn.weight > 0].tolist()

    assert len(set(seen(1, 0.1))) == len(seen(1, 0.1)) == 3
    assert len(set(seen(1, 0.55))) == len(seen(1, 0.55)) == 17
    assert set(seen(1, 0.55)) != set(seen(2, 0.55))
    assert sorted(seen(1, 1.0)) == list(range(30))


# MR-MTL


def test_mr_mtl_takes_the_step_derived_by_hand() -> None:
    """From w_k = 0 on ½·2·(w − 1)² + ½·(w − 3)², η = 0.1: ∇ = 2·(0 − 1) + (0 − 3) = −5."""
    scheme = MRMTL(strength=1.0)
    upload, kept = scheme.local_update(scalar(2.0, 1.0), Model(number(3.0)), Model(number(0.0)))
    assert kept.w["w"].item() == pytest.approx(0.5, abs=1e-15)
    assert upload.w["w"].item() == kept.w["w"].item()


def test_mr_mtl_follows_its_closed_form(start: Start, quadratics: Quadratics) -> None:
    """w_k goes to the optimum of f + (λ/2)‖w − w̄‖² by the powers of I − η(A + λI)."""
    keys = {"mr_mtl": {"lambda": 0.5}}
    run = start(scheme="mr-mtl", rounds=3, local_steps=4, lr=0.3, **keys, **quadratics.keys)
    own, eye = [quadratics.init for _ in quadratics.a], np.eye(3)
    for _ in range(3):
        mean = np.mean(own, axis=0)
        for k, (a, c) in enumerate(clients(quadratics)):
            centre = np.linalg.solve(a + 0.5 * eye, a @ c + 0.5 * mean)
            own[k] = descended(own[k], a + 0.5 * eye, centre, 0.3, 4)
    np.testing.assert_allclose(run.shared(), np.mean(own, axis=0), atol=EXACT, rtol=0)
    for k, expected in enumerate(own):
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


def test_mr_mtl_without_a_pull_is_local(start: Start) -> None:
    run = start(scheme="mr-mtl", mr_mtl={"lambda": 0.0}, **KEYS)
    alone = start(scheme="local", **KEYS)
    assert run.summary["personal"] == alone.summary["personal"]
    for name in ("hidden1.weight", "output.bias"):
        np.testing.assert_array_equal(run.predictor("002", name), alone.predictor("002", name))


def test_the_newcomer_of_mr_mtl_is_held_near_the_mean(start: Start, quadratics: Quadratics) -> None:
    run = start(
        scheme="mr-mtl", rounds=3, local_steps=2, lr=0.3, mr_mtl={"lambda": 0.5},
        join={"clients": 1, "rounds": 4}, **quadratics.keys,
    )  # fmt: skip
    (a, c), eye = clients(quadratics)[2], np.eye(3)
    centre = np.linalg.solve(a + 0.5 * eye, a @ c + 0.5 * run.shared())
    expected = descended(run.shared(), a + 0.5 * eye, centre, 0.3, 8)
    np.testing.assert_allclose(run.predictor("002"), expected, atol=EXACT, rtol=0)


# FedALA


def held(v: float, share: float, begun: float = 1.0) -> fedala.Personal:
    return fedala.Personal(number(v), number(share), torch.tensor(begun))


def test_fedala_takes_the_steps_derived_by_hand() -> None:
    """Own weight 1, received 3, W = 0.5, on f = ½·2·(Θ − 1)² with η = α = 0.1.

    - Θ̂ = 1 + (3 − 1)·0.5 = 2, so ∇_Θ̂ = 2 and ∇_W = 2·(3 − 1) = 4: W = 0.5 − 0.4 = 0.1
    - Θ̂ = 1 + 2·0.1 = 1.2, with which it would predict; ∇ = 0.4, so Θ = 1.2 − 0.04 = 1.16
    """
    scheme, work = FedALA(eta=0.1), scalar(2.0, 1.0)
    upload, kept = scheme.local_update(work, Model(number(3.0)), held(1.0, 0.5))
    assert kept.share["w"].item() == pytest.approx(0.1, abs=1e-15)
    assert upload.w["w"].item() == pytest.approx(1.16, abs=1e-15)
    assert kept.v["w"].item() == upload.w["w"].item()
    own = scheme.predictor(work, Model(number(3.0)), held(1.0, 0.5))
    assert own["w"].item() == pytest.approx(1.2, abs=1e-15)


@pytest.mark.parametrize(("optimum", "bound"), [(1.0, 0.0), (3.0, 1.0)])
def test_fedalas_weights_stay_between_0_and_1(optimum: float, bound: float) -> None:
    """With η = 1 the step goes far beyond: to the own weight or to the received one."""
    _, kept = FedALA().local_update(scalar(2.0, optimum), Model(number(3.0)), held(1.0, 0.5))
    assert kept.share["w"].item() == bound


def test_fedala_follows_the_recursion_of_its_paper(start: Start, quadratics: Quadratics) -> None:
    """Algorithm 1 in NumPy: W until it converges the first time it can move, then by a step."""
    keys = {"fedala": {"eta": 0.4, "threshold": 0.003}}
    run = start(scheme="fedala", rounds=4, local_steps=2, lr=0.2, **keys, **quadratics.keys)
    own, weights = [quadratics.init for _ in quadratics.a], [np.ones(3) for _ in quadratics.a]
    shared, begun, passes = quadratics.init, False, list[int]()

    def blended(k: int, first: bool) -> tuple[Array, Array]:
        """Θ̂ and W of a client."""
        a, c = quadratics.a[k], quadratics.c[k]
        w, losses = weights[k], list[float]()
        while True:
            mixed = own[k] + (shared - own[k]) * w
            w = np.clip(w - 0.4 * (a @ (mixed - c)) * (shared - own[k]), 0, 1)
            mixed = own[k] + (shared - own[k]) * w
            losses.append(float(0.5 * (mixed - c) @ a @ (mixed - c)))
            if not first or (len(losses) >= 10 and np.std(losses[-10:]) < 0.003):
                passes.append(len(losses))
                return mixed, w

    for number_ in range(1, 5):
        ends = []
        for k, (a, c) in enumerate(clients(quadratics)):
            mixed = shared
            if number_ > 1:  # in the first round there is nothing to weigh
                mixed, weights[k] = blended(k, first=not begun)
            ends.append(descended(mixed, a, c, 0.2, 2))
        begun, own, shared = number_ > 1, ends, np.mean(ends, axis=0)
    assert max(passes[:3]) > 10
    np.testing.assert_allclose(run.shared(), shared, atol=EXACT, rtol=0)
    for k, w in enumerate(weights):
        np.testing.assert_allclose(run.personal(f"{k:03}")["share/w"], w, atol=EXACT, rtol=0)
        np.testing.assert_allclose(
            run.predictor(f"{k:03}"), blended(k, first=False)[0], atol=EXACT, rtol=0
        )
    assert any(((w > 0) & (w < 1)).any() for w in weights)


@pytest.mark.parametrize("told", [{"eta": 0.0}, {"split": "none"}])
def test_fedala_that_takes_in_everything_is_fedavg(start: Start, told: dict[str, Any]) -> None:
    alone = {"cohort": "loop", "cohort_chunk": 1}  # as FedALA's clients always are
    keys = KEYS | {"rounds": 3, "clients_per_round": 3} | alone
    run, plain = start(scheme="fedala", fedala=told, **keys), start(scheme="fedavg", **keys)
    assert run.sha == plain.sha
    assert run.summary["personal"] == plain.summary["personal"]


def test_fedala_blends_the_last_layer_and_takes_the_others_as_they_come(start: Start) -> None:
    run = start(scheme="fedala", fedala={"share": 0.3}, **KEYS)
    for client in ("000", "001"):
        kept = run.personal(client)
        assert {name.partition("/")[2] for name in kept} == {"output.weight", "output.bias", ""}
        np.testing.assert_array_equal(
            run.predictor(client, "hidden1.weight"), run.shared("hidden1.weight")
        )
        own, received = kept["v/output.weight"], run.shared("output.weight")
        blend = run.predictor(client, "output.weight")
        assert (blend >= np.minimum(own, received) - 1e-7).all()
        assert (blend <= np.maximum(own, received) + 1e-7).all()
        assert abs(blend - received).max() > 1e-3


@pytest.mark.parametrize(("begun", "passes"), [(0.0, 10), (1.0, 1)])
def test_fedala_learns_until_it_is_steady_once_and_then_by_a_pass(
    begun: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[fedala.Blend] = []
    learned = FedALA.learned

    def counted(self: FedALA, work: Work, parts: fedala.Blend) -> fedala.Blend:
        taken.append(parts)
        return learned(self, work, parts)

    monkeypatch.setattr(FedALA, "learned", counted)
    scheme = FedALA(eta=1e-6)
    _, kept = scheme.local_update(scalar(2.0, 1.0), Model(number(3.0)), held(1.0, 0.5, begun))
    assert (len(taken), kept.begun.item()) == (passes, 1.0)
    taken.clear()
    _, kept = scheme.local_update(scalar(2.0, 1.0), Model(number(1.0)), held(1.0, 0.5, begun))
    assert (len(taken), kept.begun.item()) == (0, begun)  # nothing to weigh


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("ifca.clusters", 0, "a whole number from 1 to 1000"),
        ("ifca.averaging", "mean", "one of 'models', 'gradients'"),
        ("ifca.apart", 0.0, "a number above 0 to 1"),
        ("mr-mtl.lambda", -1.0, "a number of at least 0"),
        ("fedala.eta", -1.0, "a number of at least 0"),
        ("fedala.share", 1.5, "a number above 0 to 1"),
        ("fedala.threshold", -0.1, "a number of at least 0"),
    ],
)
def test_a_wrong_value_is_refused_by_the_keys_name(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(BadInput) as why:
        parse({key: value})
    assert str(why.value) == f"{key} must be {allowed}, not {value!r}."


def test_fedalas_split_is_refused_by_its_own_name(start: Start) -> None:
    with pytest.raises(BadInput, match=r"^fedala\.split must be .* not 'nowhere'"):
        start(scheme="fedala", fedala={"split": "nowhere"}, **KEYS)
