"""FedU and dFedU against linear algebra, and the graphs they mix over."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Federation, Member, Round
from bouquet.core.trees import Nothing
from bouquet.strategies import dfedu, fedu
from bouquet.strategies.graphs import KINDS, graph, roughest
from tests.conftest import Array, Quadratics, Run, make_quadratics
from tests.unit.algebra import EXACT, clients, descended, number, scalar_work

Start = Callable[..., Run]


def laplacian(weights: Array) -> Array:
    return np.diag(weights.sum(axis=1)) - weights


def federation(sizes: list[int], labels: list[tuple[int, ...]] | None = None) -> Federation:
    members = {
        f"{k:03}": Member(size, labels=labels[k] if labels else ()) for k, size in enumerate(sizes)
    }
    return Federation(members, lr=0.1, steps=2)


def test_fedu_mixes_as_derived_by_hand() -> None:
    """Two clients after local steps at 2 and 5, η = 0.5, μ̃ = 0.2, a = 1: Jacobi, not in place.

    w_0 = 2 − 0.1·(2 − 5) = 2.3 and w_1 = 5 − 0.1·(5 − 2) = 4.7; in place, w_1 would see 2.3
    and become 4.73.
    """
    scheme = fedu.FedU(eta=0.5)
    everyone = federation([1, 1])
    task = scalar_work(steps=1, lr=0.1, curvature=1.0, optimum=0.0).task
    server = scheme.welcome(scheme.init_server(task), everyone)
    models = {"w": torch.tensor([[2.0], [5.0]], dtype=torch.float64)}
    uploads = fedu.Upload(models, torch.tensor([0.2, 0.2], dtype=torch.float64))
    new = scheme.aggregate(server, Round(uploads, ("000", "001"), everyone))
    assert new.models["000"]["w"].item() == pytest.approx(2.3, abs=1e-15)
    assert new.models["001"]["w"].item() == pytest.approx(4.7, abs=1e-15)


def test_fedu_reaches_as_far_as_its_steps() -> None:
    """μ̃ = μR = 0.1·3; the model is the closed form of three steps."""
    work = scalar_work(steps=3, lr=0.1, curvature=2.0, optimum=1.0)
    payload = fedu.Payload(number(0.0), number(3.0))
    upload, _ = fedu.FedU().local_update(work, payload, Nothing())
    assert upload.reach.item() == pytest.approx(0.3, abs=1e-15)
    assert upload.w["w"].item() == pytest.approx(1 + 0.8**3 * 2, abs=1e-15)


@pytest.mark.parametrize("kind", ["equal", "star", "ring", "random"])
@pytest.mark.parametrize("scheme", ["fedu", "dfedu"])
def test_they_follow_the_recursion_of_their_paper(
    start: Start, quadratics: Quadratics, scheme: str, kind: str
) -> None:
    """W ← (I − μ̃ηL) applied to the models after R local steps, all at once."""
    keys = {scheme: {"eta": 0.3, "graph": kind}}
    run = start(scheme=scheme, rounds=5, local_steps=3, lr=0.2, **keys, **quadratics.keys)
    mix = np.eye(3) - 0.6 * 0.3 * laplacian(graph(kind, "", federation([1] * 3), scheme).numpy())
    w = np.array([quadratics.init] * 3)
    for _ in range(5):
        w = mix @ np.array(
            [descended(w[k], a, c, 0.2, 3) for k, (a, c) in enumerate(clients(quadratics))]
        )
    for k in range(3):
        np.testing.assert_allclose(run.predictor(f"{k:03}"), w[k], atol=EXACT, rtol=0)


@pytest.mark.parametrize("scheme", ["fedu", "dfedu"])
def test_the_iterates_converge_to_the_fixed_point_of_a_linear_solve(
    start: Start, quadratics: Quadratics, scheme: str
) -> None:
    """R = 1, full batches: w = M (w − μA(w − c)) with M = (I − μηL) ⊗ I."""
    lr, eta = 0.9, 0.4
    run = start(
        scheme=scheme, rounds=120, local_steps=1, lr=lr, eval_every=0,
        **{scheme: {"eta": eta}}, **quadratics.keys,
    )  # fmt: skip
    weights = np.ones((3, 3)) - np.eye(3)
    mix = np.kron(np.eye(3) - lr * eta * laplacian(weights), np.eye(3))
    a = block_diag(*quadratics.a)
    c = np.concatenate(quadratics.c)
    fixed = np.linalg.solve(np.eye(9) - mix @ (np.eye(9) - lr * a), mix @ (lr * a @ c))
    for k in range(3):
        expected = fixed[3 * k : 3 * k + 3]
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize("scheme", ["fedu", "dfedu"])
def test_without_a_pull_it_is_local(start: Start, scheme: str) -> None:
    keys: dict[str, Any] = {"rounds": 3, "data": {"clients": 4}, "model": {"hidden": 8}}
    run = start(scheme=scheme, **{scheme: {"eta": 0.0}}, **keys)
    assert run.summary["personal"] == start(scheme="local", **keys).summary["personal"]


def test_dfedu_is_fedu_at_full_participation(start: Start) -> None:
    """On real data and minibatches; the two add up in another order."""
    keys: dict[str, Any] = {
        "rounds": 4, "dtype": "float64", "save_predictors": True,
        "data": {"clients": 4, "partition": "dirichlet"}, "model": {"hidden": 8},
    }  # fmt: skip
    one = start(scheme="fedu", fedu={"eta": 0.1}, **keys)
    other = start(scheme="dfedu", dfedu={"eta": 0.1}, **keys)
    for client in ("000", "001", "002", "003"):
        for name in ("hidden1.weight", "output.bias"):
            np.testing.assert_allclose(
                one.predictor(client, name), other.predictor(client, name), atol=1e-12, rtol=0
            )


def test_a_strong_pull_drives_the_models_to_consensus(start: Start, quadratics: Quadratics) -> None:
    """With μ̃η at 1/N mixing is the mean itself: the models differ by one round's steps only."""
    spread = []
    for eta in (0.01, 1.0, 1 / (0.02 * 3)):
        run = start(
            scheme="fedu", rounds=60, local_steps=1, lr=0.02, fedu={"eta": eta}, **quadratics.keys
        )
        models = np.array([run.predictor(f"{k:03}") for k in range(3)])
        spread.append(np.abs(models - models.mean(axis=0)).max())
    assert spread[2] < 1e-12 < spread[1] < spread[0]


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 5),
    sampled=st.integers(1, 5),
    steps=st.integers(1, 4),
    neighbours=st.sampled_from(["all", "sampled"]),
)
def test_fedu_mixes_whoever_was_sampled(
    start: Start, tmp_path: Path, seed: int, count: int, sampled: int, steps: int, neighbours: str
) -> None:
    """Any quadratics, sample and steps: neighbours that sat out count with their last model."""
    sampled = min(sampled, count)
    problem = make_quadratics(tmp_path / f"{seed}.json", clients=count, size=2, seed=seed)
    run = start(
        scheme="fedu", rounds=3, local_steps=steps, clients_per_round=sampled, seed=seed,
        lr=0.2, fedu={"eta": 0.3, "neighbours": neighbours}, **problem.keys,
    )  # fmt: skip
    w = [problem.init for _ in range(count)]
    for event in run.events:
        chosen = [int(client) for client in event["clients"]]
        after = list(w)
        for k in chosen:
            after[k] = descended(w[k], problem.a[k], problem.c[k], 0.2, steps)
        known = chosen if neighbours == "sampled" else range(count)
        w = [
            after[k] - 0.2 * steps * 0.3 * sum(after[k] - after[j] for j in known if j != k)
            if k in chosen and len([j for j in known if j != k])
            else after[k]
            for k in range(count)
        ]
    for k in range(count):
        np.testing.assert_allclose(run.predictor(f"{k:03}"), w[k], atol=EXACT, rtol=0)
    everyone = np.mean(w, axis=0)  # whoever was sampled last
    np.testing.assert_allclose(run.server()["mean/w"], everyone, atol=EXACT, rtol=0)


def test_a_device_hears_only_of_neighbours_that_sent_something() -> None:
    """Of three on a complete graph the first and the last send 2 and 11.

    The silent one gets both, 13 and degree 2; the others get one another, with degree 1: a degree
    of 2 would pull them towards 0.
    """
    scheme = dfedu.DFedU(eta=0.1)
    everyone = federation([1, 1, 1])
    task = scalar_work(steps=1, lr=0.1, curvature=1.0, optimum=0.0).task
    server = scheme.welcome(scheme.init_server(task), everyone)
    models = dfedu.Upload({"w": torch.tensor([[2.0], [11.0]], dtype=torch.float64)})
    server = scheme.aggregate(server, Round(models, ("000", "002"), everyone))
    assert [server.sums[k]["w"].item() for k in everyone.members] == [11.0, 13.0, 2.0]
    assert [server.degrees[k].item() for k in everyone.members] == [1.0, 2.0, 1.0]


def test_the_relay_forgets_every_model_after_the_round() -> None:
    """After aggregation none of a round's models is left, and the next round drops its sums."""
    scheme = dfedu.DFedU(eta=0.1)
    everyone = federation([1, 1, 1])
    task = scalar_work(steps=1, lr=0.1, curvature=1.0, optimum=0.0).task
    server = scheme.welcome(scheme.init_server(task), everyone)
    ids = ("000", "001", "002")

    def after(values: list[float], number: int) -> set[float]:
        nonlocal server
        models = {"w": torch.tensor(values, dtype=torch.float64).reshape(3, 1)}
        server = scheme.aggregate(server, Round(dfedu.Upload(models), ids, everyone, number))
        held = [server.mean["w"], *(tree["w"] for tree in server.sums.values())]
        return {value.item() for value in held}

    assert after([2.0, 5.0, 11.0], 1) == {6.0, 16.0, 13.0, 7.0}
    assert after([1.0, 4.0, 22.0], 2) == {9.0, 26.0, 23.0, 5.0}


def test_a_device_never_mixes_a_sum_with_the_model_of_another_round() -> None:
    """A device that missed round 2 holds its model of round 1; round 2's sum is not for it."""
    scheme = dfedu.DFedU(eta=0.5)
    one = torch.ones((), dtype=torch.float64)
    personal = dfedu.Personal(number(2.0), 0.2 * one, one)
    payload = dfedu.Payload(number(0.0), one, number(5.0), one)
    assert scheme.mixed(payload, personal)["w"].item() == pytest.approx(2.3, abs=1e-15)
    late = payload._replace(round=2 * one)
    assert scheme.mixed(late, personal)["w"].item() == 2.0


def test_dfedu_refuses_a_sample(start: Start, quadratics: Quadratics) -> None:
    with pytest.raises(BadInput, match="clients-per-round must be 0 for dfedu"):
        start(scheme="dfedu", clients_per_round=2, **quadratics.keys)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "file"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_graph_is_symmetric_without_loops_and_not_negative(kind: str, count: int) -> None:
    labels: list[tuple[int, ...]] = [(k % 2, (k + 1) % 2, 1) for k in range(count)]
    weights = graph(kind, "", federation([10 * (k + 1) for k in range(count)], labels), "fedu")
    assert torch.equal(weights, weights.T)
    assert not weights.diagonal().any()
    assert bool((weights >= 0).all())
    assert bool((weights <= 1).all())


def test_graphs_are_what_they_are_called() -> None:
    def drawn(kind: str, everyone: Federation) -> list[list[float]]:
        return graph(kind, "", everyone, "fedu").tolist()

    three = federation([1, 1, 1])
    assert drawn("equal", three) == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert drawn("star", three) == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert drawn("ring", federation([1] * 4))[0] == [0, 1, 0, 1]
    # Sizes 20, 20, 100, 100: the mean is 60, and 20 is less than half of it.
    small_and_large = drawn("weighted", federation([20, 20, 100, 100]))
    assert small_and_large[0] == [0, 0, 0.5, 0.5]
    assert small_and_large[2] == [0.5, 0.5, 0, 1]
    two_labels_each = federation([1] * 4, [(5, 5, 0, 0), (0, 5, 5, 0), (5, 5, 0, 0), (0, 0, 5, 5)])
    assert drawn("similar", two_labels_each)[0] == [0, 0.5, 1, 0]


def test_similar_clients_need_labels(start: Start) -> None:
    with pytest.raises(BadInput, match=r"fedu\.graph 'similar' .*share-label-counts"):
        start(scheme="fedu", rounds=1, fedu={"graph": "similar"}, data={"clients": 4})
    run = start(
        scheme="fedu", rounds=1, fedu={"graph": "similar"}, data={"clients": 4},
        share_label_counts=True,
    )  # fmt: skip
    assert run.summary["clients"] == 4


GOOD: list[list[float]] = [[0, 0.5, 0], [0.5, 0, 2], [0, 2, 0]]


@pytest.mark.parametrize("form", ["matrix.csv", "matrix.json", "names.json"])
def test_a_graph_is_read_from_a_file(
    start: Start, quadratics: Quadratics, tmp_path: Path, form: str
) -> None:
    file = tmp_path / form
    if form == "matrix.csv":
        file.write_text("\n".join(",".join(map(str, row)) for row in GOOD))
    elif form == "matrix.json":
        file.write_text(json.dumps(GOOD))
    else:
        names = {"000": {"001": 0.5}, "001": {"000": 0.5, "002": 2}, "002": {"001": 2}}
        file.write_text(json.dumps(names))
    found = graph("file", str(file), federation([1, 1, 1]), "fedu")
    np.testing.assert_array_equal(found.numpy(), GOOD)
    run = start(
        scheme="fedu", rounds=1, local_steps=1, lr=0.1,
        fedu={"eta": 1.0, "graph": "file", "graph_file": str(file)}, **quadratics.keys,
    )  # fmt: skip
    mix = np.eye(3) - 0.1 * laplacian(np.array(GOOD))
    steps = [descended(quadratics.init, a, c, 0.1, 1) for a, c in clients(quadratics)]
    for k, expected in enumerate(mix @ np.array(steps)):
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[[0, 1], [1, 0]]", "must be 3 x 3, one row a client, not 2 x 2"),
        ("[[0, 1, 0], [2, 0, 0], [0, 0, 0]]", "clients 000 and 001 have 1 one way and 2"),
        ("[[0, -1, 0], [-1, 0, 0], [0, 0, 0]]", "at least 0"),
        ("[[0, NaN, 0], [NaN, 0, 0], [0, 0, 0]]", "all finite"),
        ("[[1, 0, 0], [0, 0, 0], [0, 0, 0]]", "diagonal of 0"),
        ("[[0, 1], [1, 0, 0], [0, 0, 0]]", "matrix of numbers"),
        ('[["a", 1, 1], [1, 0, 0], [0, 0, 0]]', "matrix of numbers"),
        ('{"007": {"000": 1}}', "names client '007', who is not there"),
        ('{"000": 3}', "an object of neighbours"),
        ("[[0, 1", "is not JSON"),
    ],
)
def test_a_wrong_graph_file_gets_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "graph.json"
    file.write_text(content)
    with pytest.raises(BadInput, match=sentence) as caught:
        graph("file", str(file), federation([1, 1, 1]), "fedu")
    assert str(file) in str(caught.value)


def test_a_graph_file_must_be_named_and_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"fedu\.graph-file must name it, not ''"):
        graph("file", "", federation([1]), "fedu")
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        graph("file", str(tmp_path / "none.csv"), federation([1]), "fedu")


def test_the_user_is_warned_where_mixing_is_no_contraction(
    start: Start, quadratics: Quadratics, caplog: pytest.LogCaptureFixture
) -> None:
    """The complete graph on 3 has λ_max = 3: μ̃η·3 is 2 at η = 2/(3·0.1·2)."""
    assert roughest(torch.ones(3, 3).double() - torch.eye(3).double()) == pytest.approx(3.0)
    for eta, warned in ((3.3, False), (3.4, True)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "flwr"):
            logging.getLogger("flwr").propagate = True
            start(
                scheme="fedu", rounds=1, local_steps=2, lr=0.1, fedu={"eta": eta},
                **quadratics.keys,
            )  # fmt: skip
        assert ("mixing drives the models apart" in caplog.text) == warned
