"""One client that sends nonsense does not decide what everybody gets."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from bouquet.client_app import main
from bouquet.client_app.node import Node
from bouquet.client_app.orders import Order
from bouquet.core import cohort
from bouquet.core.errors import BadInput
from bouquet.core.federation import Federation, Member, Round
from bouquet.core.scheme import Model
from bouquet.core.trees import Tree, flatten, unflatten
from bouquet.settings import parse
from bouquet.strategies import SCHEMES
from bouquet.strategies.fedavg import FedAvg
from bouquet.strategies.robust import Aggregation, Robust
from tests.conftest import WORKING, Run, kebab

Start = Callable[..., Run]
# What makes a lie of a client's upload and what it had received.
Lie = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LIES: dict[str, Lie] = {
    "huge": lambda sent, had: torch.full_like(sent, 1e30),
    "scaled": lambda sent, had: had - 100 * (sent - had),
}
PROTECTIONS: dict[str, dict[str, Any]] = {
    "clipped": {"max_update_norm": 1.5},
    "trimmed": {"aggregation": "trimmed", "trim": 0.1},
    "median": {"aggregation": "median"},
}
LIAR = "003"
SMALL = {"name": "synthetic", "clients": 4}
KEYS: dict[str, Any] = {
    "scheme": "fedavg",
    "rounds": 15,
    "on_divergence": "drop",
    "data": {"clients": 10, "partition": "iid"},
    "model": {"name": "linear"},
}


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lie], None]:
    """Have one client, wherever it trains, send what is not so."""
    honest = main.at_work

    def lies(lie: Lie) -> None:
        def at_work(order: Order, *rest: Any) -> Node:
            node = honest(order, *rest)
            if LIAR not in order.clients or not order.weights:
                return node
            place = order.clients.index(LIAR)

            def update(scheme: Any, work: Any, payload: Any, *more: Any) -> tuple[Any, Any]:
                upload, personal = cohort.update(scheme, work, payload, *more)
                had = flatten(payload)
                sent = {name: value.clone() for name, value in flatten(upload).items()}
                for name, rows in sent.items():
                    rows[place] = lie(rows[place], had[name])
                return unflatten(scheme.records.upload, sent), personal

            return replace(node, update=update)

        monkeypatch.setattr(main, "at_work", at_work)

    return lies


def accuracy(run: Run) -> float:
    return float(run.summary["shared"]["accuracy"]["mean"])


@pytest.fixture(scope="module")
def undisturbed(finished: Callable[..., Run]) -> float:
    return accuracy(finished(parse(kebab(KEYS))))


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("nodes", [1, 10])
@pytest.mark.parametrize("how", PROTECTIONS)
def test_one_liar_in_ten_costs_less_than_two_points(
    start: Start, lying: Callable[[Lie], None], undisturbed: float, how: str, nodes: int, lie: str
) -> None:
    """Whether it has a node of its own or shares one with all the others."""
    lying(LIES[lie])
    run = start(nodes=nodes, **KEYS, **PROTECTIONS[how])
    assert accuracy(run) > undisturbed - 0.02
    if how == "clipped":
        assert all(LIAR in event["clipped"] for event in run.events)
        assert run.summary["clipped"] == sum(len(event["clipped"]) for event in run.events)
    else:
        assert "clipped" not in run.summary


@pytest.mark.parametrize("lie", LIES)
def test_a_mean_of_all_is_what_one_liar_makes_of_it(
    start: Start, lying: Callable[[Lie], None], undisturbed: float, lie: str
) -> None:
    lying(LIES[lie])
    assert accuracy(start(nodes=10, **KEYS)) < undisturbed - 0.2


def averages(scheme: str) -> bool:
    return SCHEMES[scheme]().averages and scheme not in ("afl", "centralized")


def rounds_of(rows: Tree, weights: list[float]) -> Round[Model]:
    clients = tuple("abcdefgh"[: len(weights)])
    members = {one: Member(1, weight) for one, weight in zip(clients, weights, strict=True)}
    return Round(Model(rows), clients, Federation(members))


def test_what_becomes_of_five_uploads_by_hand() -> None:
    """Updates of 1, 2, 3, 4 and 100 from weights of 10, the last client with half the weight."""
    server = Model({"w": torch.tensor([10.0], dtype=torch.float64)})
    uploads = rounds_of({"w": torch.tensor([[11.0], [12], [13], [14], [110]])}, [1, 1, 1, 1, 4])

    def new(kind: str, trim: float, longest: float) -> tuple[float, list[str]]:
        scheme = Robust(FedAvg(), Aggregation(kind, trim, longest))
        return float(scheme.aggregate(server, uploads).w["w"]), scheme.clipped(server, uploads)

    assert new("mean", 0.1, 2.0) == (10 + (1 + 2 + 3 + 4 + 4 * 6) / 8, ["e"])  # 2 medians are 6
    assert new("mean", 0.1, 50.0) == (10 + (1 + 2 + 3 + 4 + 4 * 100) / 8, [])
    assert new("median", 0.1, 0.0) == (13.0, [])
    assert new("trimmed", 0.1, 0.0) == (13.0, [])  # at least one at each end
    found, clipped = new("trimmed", 0.2, 1.0)  # 1, 2, 3, 3 and 3, without 1 and 3
    assert found == pytest.approx(10 + (2 + 3 + 3) / 3)
    assert clipped == ["d", "e"]


def test_of_two_uploads_there_is_nothing_to_leave_out() -> None:
    server = Model({"w": torch.zeros(1)})
    uploads = rounds_of({"w": torch.tensor([[1.0], [3.0]])}, [1, 1])
    for kind in ("trimmed", "median"):
        assert Robust(FedAvg(), Aggregation(kind, 0.4, 0)).aggregate(server, uploads).w["w"] == 2


@pytest.mark.parametrize("keys", [{"aggregation": "trimmed", "trim": 0.0}, {"trim": 0.3}])
def test_values_that_change_nothing_leave_every_bit_as_it_was(
    start: Start, keys: dict[str, Any]
) -> None:
    problem = {"scheme": "apfl", "rounds": 2, "data": {"clients": 3}}
    assert start(**problem, **keys).sha == start(**problem).sha


# AFL and the pooled learner are refused; see below.
@pytest.mark.parametrize("scheme", [one for one in WORKING if averages(one)])
def test_every_scheme_that_averages_ends_where_its_mean_would_if_nothing_is_clipped(
    start: Start, scheme: str
) -> None:
    keys = {"scheme": scheme, "rounds": 2, "local_steps": 2, "dtype": "float64"}
    plain = start(**keys, data=SMALL)
    looked_at = start(**keys, data=SMALL, max_update_norm=1e6, nodes=2)
    assert looked_at.summary["clipped"] == 0
    for name, value in plain.server().items():
        assert abs(looked_at.server()[name] - value).max(initial=0.0) < 1e-9, name


@pytest.mark.parametrize("keys", [{"aggregation": "median"}, {"max-update-norm": 3.0}])
@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"scheme": "fedu"}, "does not average"),
        ({"scheme": "local"}, "does not average"),
        ({"scheme": "centralized"}, "does not average"),
        ({"scheme": "afl"}, "agnostic"),
        ({"scheme": "fedavg", "weights": "agnostic"}, "agnostic"),
    ],
)
def test_what_has_no_mean_to_protect_is_refused(
    chosen: dict[str, Any], keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        parse(chosen | keys)
