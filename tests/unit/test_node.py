"""A node at work: what its clients upload, keep, and what happens when one of them fails."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st
from safetensors.torch import load_file

from bouquet.client_app.node import Node, Result
from bouquet.client_app.stores import DiskStore, MemoryStore, Store, read_state
from bouquet.core import cohort
from bouquet.core.batches import Plan, draw, gather
from bouquet.core.errors import BadInput
from bouquet.core.scheme import Work
from bouquet.core.task import Task
from bouquet.core.trees import Tree, fingerprint, flatten, mix, stack
from bouquet.problem import problem
from bouquet.settings import Settings, parse
from bouquet.storage.state import Identity, PersonalState
from bouquet.strategies import SCHEMES
from bouquet.strategies.apfl import APFL
from tests.conftest import WORKING

# Clients of unequal size, in double precision so that only mistakes are visible.
KEYS: dict[str, object] = {
    "data.clients": 5,
    "data.partition": "dirichlet",
    "model.name": "linear",
    "dtype": "float64",
    "local-steps": 3,
    "batch-size": 8,
    "fedala.share": 0.1,
}
ALL = ["000", "001", "002", "003", "004"]
WEIGHTS = [5.0, 1.0, 2.0, 3.0, 4.0]


def configured(scheme: str = "apfl", **keys: object) -> Settings:
    changes = {name.replace("_", "-"): value for name, value in keys.items()}
    needs = {"model.name": "linear"} if scheme == "mocha" else {}
    return parse(KEYS | {"scheme": scheme} | needs | changes)


def host(settings: Settings, store: Store, clients: list[str] = ALL) -> Node:
    return Node(settings, problem(settings), tuple(clients), store)


def payload(node: Node, shift: float = 0.0, clients: Sequence[str] = ALL) -> Tree:
    """What the server sends: the initial weights, moved by a little where asked."""
    scheme = node.settings.scheme
    sent = scheme.downlink(scheme.init_server(node.problem.task), clients)
    return {name: value + shift for name, value in flatten(sent).items()}


def train(node: Node, clients: list[str], round_: int = 1) -> Result:
    weights = [WEIGHTS[ALL.index(client)] if client in ALL else 1.0 for client in clients]
    return node.train(round_, clients, weights, payload(node, clients=clients))


def own_state(node: Node, client: str, round_: int, value: float) -> PersonalState:
    """A client's state with one value everywhere."""
    scheme, task = node.settings.scheme, node.problem.task
    initial = flatten(scheme.init_personal(task, 1))
    identity = Identity(scheme.state_kind, scheme.version, fingerprint(task.initial), client)
    tensors = {name: torch.full_like(tensor, value) for name, tensor in initial.items()}
    return PersonalState(identity, round_, tensors)


def assert_near(one: Tree, other: Tree, tolerance: float = 1e-12) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=tolerance)


# The mean


@pytest.mark.parametrize("scheme", ["fedavg", "apfl"])
def test_a_nodes_upload_is_the_weighted_mean_of_what_each_client_uploads_alone(scheme: str) -> None:
    node = host(configured(scheme), MemoryStore())
    together = train(node, ALL)
    alone = [train(host(node.settings, MemoryStore()), [client]).mean for client in ALL]
    shares = torch.tensor(WEIGHTS, dtype=torch.float64) / sum(WEIGHTS)
    expected = {
        name: torch.tensordot(shares, torch.stack([one[name] for one in alone]), 1)
        for name in alone[0]
    }
    assert together.clients == ALL
    assert together.weight == sum(WEIGHTS)
    assert_near(together.mean, expected)
    assert len({str(one) for one in alone}) == len(ALL)  # they had something to disagree on


@pytest.mark.parametrize("scheme", WORKING)
def test_the_size_of_a_chunk_changes_rounding_alone(scheme: str) -> None:
    def run(size: int) -> tuple[Result, Result, MemoryStore]:
        store = MemoryStore()
        node = host(configured(scheme, cohort_chunk=size), store)
        return train(node, ALL), node.evaluate(1, ALL, payload(node), None), store

    whole, judged, kept = run(0)
    for size in (1, 3):
        cut, judged_too, also_kept = run(size)
        assert cut.clients == whole.clients
        assert_near(cut.mean, whole.mean)
        assert judged.metrics.keys() == judged_too.metrics.keys()
        for name, values in judged.metrics.items():
            assert judged_too.metrics[name] == pytest.approx(values, abs=1e-12)
        for client, identity in identities(scheme):
            one, other = kept.load(identity, 2), also_kept.load(identity, 2)
            assert (one is None) == (other is None) == (not SCHEMES[scheme]().stateful), client
            if one and other:
                assert_near(one.tensors, other.tensors)


def identities(scheme: str) -> list[tuple[str, Identity]]:
    node = host(configured(scheme), MemoryStore())
    return [(client, own_state(node, client, 1, 0.0).identity) for client in ALL]


def test_training_judges_nothing() -> None:
    node = host(configured(), MemoryStore())
    assert train(node, ALL).metrics == {}
    assert node.evaluate(1, ALL, payload(node), None).metrics.keys() == {
        "shared_loss",
        "shared_accuracy",
        "personal_loss",
        "personal_accuracy",
    }


# Failures


def test_a_client_whose_training_is_not_finite_is_left_out_and_keeps_its_state(
    tmp_path: Path,
) -> None:
    node = host(configured(), DiskStore(tmp_path))
    train(node, ALL, round_=1)
    poisoned = tmp_path / "002.safetensors"
    poisoned.unlink()
    DiskStore(tmp_path).save(own_state(node, "002", 1, torch.nan))
    before = poisoned.read_bytes()
    healthy = [client for client in ALL if client != "002"]
    spared = train(host(node.settings, copied(tmp_path)), healthy, round_=2)

    result = train(host(node.settings, DiskStore(tmp_path)), ALL, round_=2)
    assert result.failures == {"002": "its training in round 2 gave NaN or infinity"}
    assert result.clients == healthy
    assert result.weight == spared.weight
    assert_near(result.mean, spared.mean)
    assert poisoned.read_bytes() == before
    assert not (tmp_path / "002.previous.safetensors").exists()
    assert {read_state(tmp_path / f"{client}.safetensors").round for client in healthy} == {2}


def copied(folder: Path) -> DiskStore:
    """A store of its own with the same files."""
    other = folder / "copy"
    other.mkdir()
    for path in folder.glob("*.safetensors"):
        (other / path.name).write_bytes(path.read_bytes())
    return DiskStore(other)


def test_another_round_brings_other_batches() -> None:
    """From the same weights, the first round twice is the same; the second is not."""
    node = host(configured("fedavg", batch_size=4), MemoryStore())
    first, again, second = (train(node, ALL, round_=round_).mean for round_ in (1, 1, 2))
    assert_near(first, again, tolerance=0)
    assert all(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("chunk", [0, 2])
def test_a_node_whose_clients_all_fail_uploads_nothing(tmp_path: Path, chunk: int) -> None:
    """Each step multiplies the weights by 10¹⁸, which overflows a float32 in the third."""
    wild = configured(dtype="float32", lr=1e9, weight_decay=1e9, cohort_chunk=chunk)
    result = train(host(wild, DiskStore(tmp_path)), ALL)
    assert list(result.failures) == ALL
    assert (result.clients, result.mean, result.weight, result.metrics) == ([], {}, 0.0, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", WORKING)
def test_a_client_that_lives_elsewhere_is_reported_and_nobody_else_is_affected(scheme: str) -> None:
    settings = configured(scheme)
    node = host(settings, MemoryStore(), clients=["000", "001"])
    result = train(node, ["000", "003", "001", "nobody"])
    assert result.failures == dict.fromkeys(["003", "nobody"], "this node does not host it")
    assert sorted(result.clients) == ["000", "001"]
    alone = train(host(settings, MemoryStore()), ["000", "001"])
    assert_near(result.mean, alone.mean, tolerance=0)


@pytest.mark.parametrize("damage", ["cut short", "a tensor of another shape"])
def test_a_damaged_state_file_fails_its_client_alone(tmp_path: Path, damage: str) -> None:
    node = host(configured(), DiskStore(tmp_path))
    train(node, ALL, round_=1)
    path = tmp_path / "003.safetensors"
    content = path.read_bytes()
    turned = content.replace(b"[10,64]", b"[64,10]")
    assert turned != content
    path.write_bytes(content[:-1] if damage == "cut short" else turned)
    before = path.read_bytes()
    healthy = [client for client in ALL if client != "003"]

    again = host(node.settings, DiskStore(tmp_path))
    trained = train(again, ALL, round_=2)
    evaluated = again.evaluate(2, ALL, payload(again), None)
    for result in (trained, evaluated):
        assert sorted(result.clients) == healthy
        assert list(result.failures) == ["003"]
        assert str(path) in result.failures["003"]
    assert path.read_bytes() == before


def test_weights_that_do_not_fit_the_model_are_refused_before_any_work(tmp_path: Path) -> None:
    node = host(configured(), DiskStore(tmp_path))
    wrong = {name: value.float() for name, value in payload(node).items()}
    with pytest.raises(BadInput, match="does not fit this node's model"):
        node.train(1, ALL, WEIGHTS, wrong)
    with pytest.raises(BadInput, match="does not fit this node's model"):
        node.evaluate(1, ALL, wrong, None)
    assert list(tmp_path.iterdir()) == []


# Evaluation


def test_both_models_are_judged_on_each_clients_own_test_data() -> None:
    node = host(configured("apfl", local_steps=5), MemoryStore())
    train(node, ALL)
    sent = payload(node, shift=0.01)
    result = node.evaluate(1, ALL, sent, None)
    task, shared = node.problem.task, {name.removeprefix("w/"): t for name, t in sent.items()}
    for client in ALL:
        personal = node.store.load(own_state(node, client, 1, 0.0).identity, before=2)
        assert personal is not None
        kept = personal.tensors
        v = {name.removeprefix("v/"): t for name, t in kept.items() if name.startswith("v/")}
        own = mix(v, shared, personal.tensors["alpha"])
        assert measured(result, "shared", client) == by_hand(node, task, shared, client)
        assert measured(result, "personal", client) == by_hand(node, task, own, client)


def measured(result: Result, whose: str, client: str) -> Any:
    place = result.clients.index(client)
    pair = [result.metrics[f"{whose}_{what}"][place] for what in ("loss", "accuracy")]
    return pytest.approx(pair, abs=1e-12)


def by_hand(node: Node, task: Task, model: Tree, client: str) -> list[float]:
    """Mean loss and accuracy over the client's test examples, without padding."""
    test = node.problem.data.clients[client].test
    losses, right = task.losses(model, node.problem.data.x[test], node.problem.data.y[test])
    return [losses.mean().item(), right.double().mean().item()]


def test_evaluation_changes_no_state() -> None:
    node = host(configured(), MemoryStore())
    train(node, ["000"])
    identity = own_state(node, "000", 1, 0.0).identity
    before = node.store.load(identity, 2)
    node.evaluate(1, ALL, payload(node), None)
    assert node.store.load(identity, 2) is before
    assert node.store.load(replace(identity, client="001"), 2) is None


@pytest.mark.parametrize("scheme", WORKING)
def test_each_clients_predictor_is_the_model_it_was_judged_with(
    scheme: str, tmp_path: Path
) -> None:
    node = host(configured(scheme), MemoryStore())
    train(node, ALL)
    result = node.evaluate(1, ALL, payload(node, shift=0.01), tmp_path)
    for client in ALL:
        model = load_file(tmp_path / f"{client}.safetensors")
        judged = by_hand(node, node.problem.task, model, client)
        assert measured(result, "personal", client) == judged


def test_a_predictor_stays_in_its_folder_whatever_the_client_is_called(tmp_path: Path) -> None:
    settings = configured()
    loaded = problem(settings)
    odd = "../outside"
    data = replace(loaded.data, clients={odd: loaded.data.clients["000"]})
    node = Node(settings, replace(loaded, data=data), (odd,), MemoryStore())
    folder = tmp_path / "predictors"
    result = node.evaluate(1, [odd], payload(node, clients=[odd]), folder)
    assert result.clients == [odd]
    assert {path.parent for path in tmp_path.rglob("*.safetensors")} == {folder}


# Cohorts


@checked(deadline=None)
@given(st.integers(0, 40), st.integers(0, 9), st.integers(0, 2**30), st.booleans())
def test_chunks_of_equal_clients_keep_the_order_and_are_nearly_equal(
    count: int, most: int, example_bytes: int, recorded: bool
) -> None:
    task = problem(configured()).task
    clients = [str(number) for number in range(count)]
    found = cohort.chunks(clients, [1] * count, task, example_bytes, most, recorded)
    assert list(itertools.chain(*found)) == clients
    sizes = [len(chunk) for chunk in found]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert not sizes or max(sizes) <= (most or count)


@checked(deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(0, 2**20))
def test_chunks_of_unequal_clients_are_of_similar_ones(loads: list[int], size: int) -> None:
    task = problem(configured()).task
    clients = [f"{number:02}" for number in range(len(loads))]
    load = dict(zip(clients, loads, strict=True))
    found = cohort.chunks(clients, loads, task, size, most=0)
    assert sorted(itertools.chain(*found)) == sorted(clients)
    falling = [load[client] for chunk in found for client in chunk]
    assert falling == sorted(loads, reverse=True)
    padded = [len(chunk) * max(load[client] for client in chunk) * size for chunk in found]
    alone = [len(chunk) == 1 for chunk in found]
    assert all(one <= cohort.CHUNK_EXAMPLES or own for one, own in zip(padded, alone, strict=True))


def test_a_few_with_far_more_to_do_are_apart() -> None:
    task = problem(configured()).task
    clients = [str(number) for number in range(100)]
    loads = [1000 if number in (7, 70) else 100 for number in range(100)]
    few, rest = cohort.chunks(clients, loads, task, 1, most=0)
    assert few == ["7", "70"]
    assert len(rest) == 98


def test_a_chunk_is_limited_by_what_its_examples_take() -> None:
    task = problem(configured()).task
    loads = [cohort.CHUNK_EXAMPLES // 8] * len(ALL)
    found = cohort.chunks(ALL, loads, task, example_bytes=4, most=0)
    assert [len(chunk) for chunk in found] == [1, 2, 2]


@pytest.mark.parametrize("epochs", [0, 2])
def test_passes_over_the_data_are_as_limited_as_steps(
    epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of a round are in memory at once, whichever way local work is told."""
    node = host(configured(local_epochs=epochs, local_steps=0 if epochs else 40), MemoryStore())
    taken: list[int] = []

    def noted(*given: Any) -> tuple[Any, Any]:
        taken.append(given[4].x.nbytes)
        return cohort.update(*given)

    monkeypatch.setattr(cohort, "CHUNK_EXAMPLES", most := 600_000)
    train(replace(node, update=noted), ALL)
    assert max(taken) <= most < sum(taken)


def test_what_cannot_be_batched_runs_client_by_client() -> None:
    """A scheme that looks at a number, which vmap does not allow."""
    settings = configured()
    loaded, scheme = problem(settings), settings.scheme

    class Nosy(APFL):
        def local_update(self, work: Work, payload: Any, personal: Any) -> Any:
            assert personal.alpha.item() == 0.5
            return super().local_update(work, payload, personal)

    own = [loaded.data.clients[client].train for client in ALL]
    drawn = draw(ALL, own, Plan(3, 0, 8), (0, "train", 1), settings.dtype)
    batches = gather(loaded.data.x, loaded.data.y, drawn)
    states = stack([scheme.init_personal(loaded.task, 1)] * len(ALL))
    node = host(settings, MemoryStore())
    sent = scheme.downlink(scheme.init_server(loaded.task), ())
    given = (node._work(1, ALL), sent, states)
    with pytest.raises(RuntimeError):
        cohort.update(Nosy(), *given, batches, "vmap")
    fallen_back = cohort.update(Nosy(), *given, batches, "auto")
    batched = cohort.update(scheme, *given, batches, "vmap")
    for one, other in zip(fallen_back, batched, strict=True):
        assert_near(flatten(one), flatten(other))
