"""The Flower adapter: which clients are asked, and which replies count."""

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st
from torch import nn

from bouquet.core.task import Task
from bouquet.core.trees import Tree, flatten, is_finite, sha256
from bouquet.flower import wire
from bouquet.flower.private import HttpGrid, TaskIdentity
from bouquet.server_app.membership import Client, Roster
from bouquet.server_app.strategy import SchemeStrategy
from bouquet.settings import parse

ROUND = 7
# Node 11 is the one that will misbehave; it has most of the weight.
CLIENTS = [
    Client("anna", node=11, place=0, train_examples=30, test_examples=1),
    Client("ben", node=11, place=0, train_examples=10, test_examples=1),
    Client("carla", node=12, place=1, train_examples=2, test_examples=1),
    Client("dan", node=13, place=2, train_examples=4, test_examples=1),
]
LOSSES, ACCURACIES = ("shared_loss", "personal_loss"), ("shared_accuracy", "personal_accuracy")
VALUES = {11: 100.0, 12: 1.0, 13: 4.0}
# Of carla's 1 with weight 2 and dan's 4 with weight 4.
MEAN_OF_THE_OTHERS = (2 * 1.0 + 4 * 4.0) / 6


@pytest.fixture(autouse=True)
def identity() -> Iterator[None]:
    """Flower wants to know who makes a message."""
    known = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    yield
    TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = known


@pytest.fixture
def strategy() -> SchemeStrategy:
    return make_strategy()


ADAM: dict[str, Any] = {"server-optimizer": "adam"}
ONE_CLIENT: dict[str, Any] = {"clients-per-round": 1}


def make_strategy(dtype: torch.dtype = torch.float32, **keys: Any) -> SchemeStrategy:
    """FedAvg of a model with two numbers, which start at 0."""
    task = Task(nn.Identity(), {"x": torch.zeros(2, dtype=dtype)}, classes=2)
    roster = Roster({client.id: client for client in CLIENTS})
    return SchemeStrategy(parse({"scheme": "fedavg", **keys}), task, roster)


def ask(strategy: SchemeStrategy, round_: int = ROUND) -> dict[int, Message]:
    """The messages of a round, by node."""
    messages = strategy.configure_train(round_, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    return {message.metadata.dst_node_id: message for message in messages}


def note_of(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records[wire.NOTE])


def answer(
    message: Message,
    tree: Tree | None = None,
    metrics: dict[str, Any] | None = None,
    **note: Any,
) -> Message:
    """A good reply to a message, but for what the arguments change."""
    asked, training = note_of(message), message.metadata.message_type == MessageType.TRAIN
    known = {"round": asked["round"], "clients": asked["clients"]}
    known |= {"failed": [], "reasons": [], "diverged": []}
    value = VALUES[message.metadata.dst_node_id]
    numbers: dict[str, Any] = {"weight": sum(asked["weights"]) if training else 0.0}
    numbers |= {"seconds_training": value, "seconds_evaluation": 0.0}
    if not training:
        numbers |= {name: [value] * len(asked["clients"]) for name in LOSSES}
        numbers |= {name: [0.5] * len(asked["clients"]) for name in ACCURACIES}
    numbers |= metrics or {}
    upload = {"w/x": torch.full((2,), value)} if training else {}
    tree = upload if tree is None else tree
    content = wire.content(tree, MetricRecord(numbers), ConfigRecord(known | note))
    return Message(content, reply_to=message)


def without(message: Message, record: str, name: str | None = None) -> Message:
    """A reply that lacks a record, or a name in one."""
    reply = answer(message)
    if name is None:
        del reply.content[record]
    else:
        del cast(dict[str, Any], reply.content[record])[name]
    return reply


def of_raw_bytes(message: Message, data: bytes) -> Message:
    """A reply whose array is not what an array looks like."""
    reply = answer(message)
    array = Array("float32", (2,), "numpy.ndarray", data)
    reply.content[wire.ARRAYS] = ArrayRecord({"w/x": array})
    return reply


def of_another_type(message: Message, value: float) -> Message:
    """A reply that claims not to be about training."""
    reply = answer(message, {"w/x": torch.full((2,), value)})
    reply.metadata.message_type = "evaluate"
    return reply


BAD_REPLIES: dict[str, tuple[Callable[[Message], Message | None], str]] = {
    "error": (lambda m: Message(Error(code=1, reason="out of memory"), reply_to=m), "out of memo"),
    "error without a reason": (lambda m: Message(Error(code=1), reply_to=m), "without a reason"),
    "none at all": (lambda m: None, "no reply in time"),
    "of an earlier round": (lambda m: answer(m, round=ROUND - 1), "a late reply of round 6"),
    "NaN": (lambda m: answer(m, {"w/x": torch.tensor([1.0, torch.nan])}), "NaN or infinite"),
    "infinity": (lambda m: answer(m, {"w/x": torch.tensor([torch.inf, 1.0])}), "NaN or infinite"),
    "wrong shape": (lambda m: answer(m, {"w/x": torch.ones(3)}), "names, shapes or types"),
    "scalar": (lambda m: answer(m, {"w/x": torch.tensor(1.0)}), "names, shapes or types"),
    "wrong type": (lambda m: answer(m, {"w/x": torch.ones(2).double()}), "names, shapes or types"),
    "wrong name": (lambda m: answer(m, {"w/y": torch.ones(2)}), "names, shapes or types"),
    "one tensor more": (
        lambda m: answer(m, {"w/x": torch.ones(2), "w/y": torch.ones(2)}),
        "names, shapes or types",
    ),
    "no tensor": (lambda m: answer(m, {}), "names, shapes or types"),
    "unknown client": (lambda m: answer(m, clients=["anna", "eve"]), "not asked: ['eve']"),
    "client of another node": (lambda m: answer(m, clients=["anna", "dan"]), "not asked: ['dan']"),
    "unknown failure": (lambda m: answer(m, failed=["eve"], reasons=["x"]), "not asked: ['eve']"),
    "client claimed twice": (lambda m: answer(m, clients=["anna", "anna"]), ""),
    "client both done and failed": (lambda m: answer(m, failed=["ben"], reasons=["x"]), ""),
    "too much weight": (lambda m: answer(m, metrics={"weight": 41.0}), "41.0 where 40.0 is due"),
    "weight that is NaN": (lambda m: answer(m, metrics={"weight": torch.nan}), "weight must be"),
    "weight that is a list": (lambda m: answer(m, metrics={"weight": [20.0, 20.0]}), "malformed"),
    "no weight": (lambda m: without(m, wire.METRICS, "weight"), "malformed"),
    "scores of training": (
        lambda m: answer(m, metrics={"shared_loss": [1.0, 1.0]}),
        "unknown 'shared_loss'",
    ),
    "a metric called round": (lambda m: answer(m, metrics={"round": [1.0, 1.0]}), "unknown"),
    "no seconds": (lambda m: without(m, wire.METRICS, "seconds_training"), "lack seconds_tr"),
    "seconds that are NaN": (lambda m: answer(m, metrics={"seconds_training": torch.nan}), "nan"),
    "seconds below 0": (lambda m: answer(m, metrics={"seconds_training": -1.0}), "-1"),
    "an unknown word": (lambda m: answer(m, more="x"), "unknown"),
    "a round that is no int": (lambda m: answer(m, round=float(ROUND)), "whole number"),
    "no record at all": (lambda m: Message(RecordDict(), reply_to=m), "malformed"),
    "no arrays": (lambda m: without(m, wire.ARRAYS), "malformed"),
    "no metrics": (lambda m: without(m, wire.METRICS), "malformed"),
    "no note": (lambda m: without(m, wire.NOTE), "malformed"),
    "no round": (lambda m: without(m, wire.NOTE, "round"), "malformed"),
    "no clients": (lambda m: without(m, wire.NOTE, "clients"), "malformed"),
    "no failures": (lambda m: without(m, wire.NOTE, "failed"), "malformed"),
    "clients that are no list": (lambda m: answer(m, clients="anna"), "malformed"),
    "clients that are no text": (lambda m: answer(m, clients=[1, 2]), ""),
    "failures without reasons": (lambda m: answer(m, clients=["anna"], failed=["ben"]), "reasons"),
    "reasons that are no text": (
        lambda m: answer(
            m,
            metrics={"weight": 30.0},
            clients=["anna"],
            failed=["ben"],
            reasons=[b"\xff"],
        ),
        "malformed",
    ),
    "empty bytes": (lambda m: of_raw_bytes(m, b""), "malformed"),
    "a pickle's bytes": (lambda m: of_raw_bytes(m, b"\x80\x04N."), "malformed"),
    "a zip file's bytes": (lambda m: of_raw_bytes(m, b"PK\x03\x04" + b"\0" * 30), "malformed"),
    "another type of message": (lambda m: of_another_type(m, 1.0), "another kind of message"),
    "poison under another type": (lambda m: of_another_type(m, torch.nan), ""),
}


# Replies


def test_devices_are_asked_for_more_than_a_round_wants_and_the_first_count() -> None:
    deployed = HttpGrid.__new__(HttpGrid)
    wanted: dict[str, Any] = {"clients-per-round": 3}
    strategy = make_strategy(**wanted | {"over-select": 1.3})
    messages = strategy.configure_train(ROUND, ArrayRecord(), ConfigRecord(), deployed)
    assert [note_of(one)["clients"] for one in messages] == [["anna", "ben"], ["carla"], ["dan"]]
    replies = [answer(message) for message in messages]
    assert not strategy.enough(replies[:1])
    assert not strategy.enough([replies[0], Message(Error(0, "gone"), reply_to=messages[1])])
    assert strategy.enough(replies[:2])
    strategy.take_in(ROUND, replies[:2])
    assert strategy.report.failures == {"dan": "no reply before enough others'"}
    strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), deployed)
    assert not strategy.enough([])
    # In a simulation nobody is late, and who answers first must not matter.
    simulated = [ask(make_strategy(**wanted | more)) for more in ({}, {"over-select": 1.3})]
    assert len({str([note_of(one) for one in asked.values()]) for asked in simulated}) == 1


def test_the_mean_is_weighted_by_the_clients_examples(strategy: SchemeStrategy) -> None:
    replies = [answer(message) for message in ask(strategy).values()]
    strategy.aggregate_train(ROUND, replies)
    mean = (40 * 100.0 + 2 * 1.0 + 4 * 4.0) / 46
    torch.testing.assert_close(strategy.server.w["x"], torch.full((2,), mean))
    assert strategy.report.clients == ["anna", "ben", "carla", "dan"]
    assert strategy.report.failures == {}
    assert strategy.report.scores == {}  # training does not evaluate
    assert strategy.report.seconds == {"training": 100.0, "evaluation": 0.0}  # the slowest node's


@pytest.mark.parametrize("what", list(BAD_REPLIES))
def test_a_bad_reply_is_counted_logged_and_left_out_and_the_round_goes_on(
    what: str, strategy: SchemeStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    make, why = BAD_REPLIES[what]
    messages = ask(strategy)
    bad = make(messages[11])
    replies = [answer(messages[13]), *([bad] if bad else []), answer(messages[12])]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy.aggregate_train(ROUND, replies)
    report = strategy.report
    assert list(report.failures) == ["anna", "ben"]
    assert all(why in reason for reason in report.failures.values())
    assert report.clients == ["carla", "dan"]
    assert strategy.server.w["x"].tolist() == [MEAN_OF_THE_OTHERS] * 2
    (line,) = caplog.messages
    assert f"Round {ROUND}: left out client anna, ben: " in line
    assert why in line


def test_a_round_with_no_valid_reply_keeps_the_weights_and_says_so(
    strategy: SchemeStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    strategy.aggregate_train(ROUND, [answer(message) for message in ask(strategy).values()])
    kept = strategy.server.w["x"].clone()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        ask(strategy, ROUND + 1)
        strategy.aggregate_train(ROUND + 1, [])
    assert torch.equal(strategy.server.w["x"], kept)
    assert list(strategy.report.failures) == ["anna", "ben", "carla", "dan"]
    assert caplog.messages[-1] == (
        f"Round {ROUND + 1} had no valid reply: the weights stay as they were."
    )


def test_a_node_may_report_one_client_and_train_the_other(
    strategy: SchemeStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    messages = ask(strategy)
    partial = answer(
        messages[11],
        metrics={"weight": 30.0},
        clients=["anna"],
        failed=["ben"],
        reasons=["its file is damaged"],
    )
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy.aggregate_train(ROUND, [partial, answer(messages[12]), answer(messages[13])])
    assert strategy.report.failures == {"ben": "its file is damaged"}
    assert strategy.report.clients == ["anna", "carla", "dan"]
    mean = (30 * 100.0 + 2 * 1.0 + 4 * 4.0) / 36
    torch.testing.assert_close(strategy.server.w["x"], torch.full((2,), mean))
    assert caplog.messages == [f"Round {ROUND}: left out client ben: its file is damaged"]


def test_a_node_whose_clients_all_failed_counts_for_nothing(strategy: SchemeStrategy) -> None:
    messages = ask(strategy)
    failed = answer(
        messages[11],
        {},
        metrics={"weight": 0.0},
        clients=[],
        failed=["anna", "ben"],
        reasons=["NaN", "NaN"],
    )
    strategy.aggregate_train(ROUND, [failed, answer(messages[12]), answer(messages[13])])
    assert strategy.report.failures == {"anna": "NaN", "ben": "NaN"}
    assert strategy.server.w["x"].tolist() == [MEAN_OF_THE_OTHERS] * 2


def test_a_client_the_reply_says_nothing_about_is_counted_as_failed(
    strategy: SchemeStrategy,
) -> None:
    messages = ask(strategy)
    silent = answer(messages[11], metrics={"weight": 30.0}, clients=["anna"])
    strategy.aggregate_train(ROUND, [silent, answer(messages[12]), answer(messages[13])])
    assert "ben" in strategy.report.failures


def test_a_node_is_counted_once_and_one_that_was_not_asked_not_at_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = make_strategy()
    messages = ask(strategy)
    stranger = answer(messages[11])
    stranger.metadata.__dict__["_src_node_id"] = 99
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy.aggregate_train(
            ROUND, [answer(messages[12]), answer(messages[12]), answer(messages[13]), stranger]
        )
    assert strategy.server.w["x"].tolist() == [MEAN_OF_THE_OTHERS] * 2
    assert strategy.report.clients == ["carla", "dan"]
    assert "A reply of node 12 in round 7 was not asked for." in caplog.messages
    assert "A reply of node 99 in round 7 was not asked for." in caplog.messages


def test_the_order_in_which_replies_arrive_changes_no_bit() -> None:
    """Of numbers whose sum depends on the order it is taken in."""
    numbers = {11: [1e16, 1.0], 12: [1.0, 1e17], 13: [-1e17, -5e16]}
    ends = set()
    for arrival in itertools.permutations(numbers):
        strategy = make_strategy(torch.float64)
        messages = ask(strategy)
        trees = {
            node: {"w/x": torch.tensor(numbers[node], dtype=torch.float64)} for node in arrival
        }
        strategy.aggregate_train(ROUND, [answer(messages[node], trees[node]) for node in arrival])
        ends.add(tuple(strategy.server.w["x"].tolist()))
    assert len(ends) == 1


def test_scores_are_in_the_order_of_the_nodes_whoever_answers_first(
    strategy: SchemeStrategy,
) -> None:
    """Their means depend on it."""
    asked = strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    for arrival in itertools.permutations(asked):
        strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
        strategy.aggregate_evaluate(ROUND, map(answer, arrival))
        assert list(strategy.report.scores) == ["anna", "ben", "carla", "dan"]


def test_an_evaluation_needs_no_weights(strategy: SchemeStrategy) -> None:
    messages = strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    strategy.aggregate_evaluate(ROUND, [answer(message) for message in messages])
    assert strategy.report.failures == {}
    assert strategy.report.scores["dan"] == {
        "shared_loss": 4.0,
        "personal_loss": 4.0,
        "shared_accuracy": 0.5,
        "personal_accuracy": 0.5,
    }
    assert strategy.server.w["x"].tolist() == [0.0, 0.0]


BAD_SCORES: dict[str, tuple[Callable[[Message], Message | None], str]] = {
    what: BAD_REPLIES[what]
    for what in ("error", "none at all", "of an earlier round", "unknown client")
} | {
    "no loss": (lambda m: without(m, wire.METRICS, "personal_loss"), "lack personal_loss"),
    "too few": (lambda m: answer(m, metrics={"shared_loss": [1.0]}), "2 entries, not 1"),
    "one number": (lambda m: answer(m, metrics={"shared_loss": 1.0}), "must be a list"),
    "more than all right": (
        lambda m: answer(m, metrics={"shared_accuracy": [1.0, 1.1]}),
        "from 0 to 1, not 1.1",
    ),
    "an accuracy that is NaN": (
        lambda m: answer(m, metrics={"shared_accuracy": [1.0, torch.nan]}),
        "from 0 to 1, not nan",
    ),
    "an unknown measure": (lambda m: answer(m, metrics={"clients": [1.0, 1.0]}), "unknown"),
    "a weight": (lambda m: answer(m, metrics={"weight": 40.0}), "40.0 where 0 is due"),
    "weights": (lambda m: answer(m, {"w/x": torch.ones(2)}), "names, shapes or types"),
}


@pytest.mark.parametrize("what", list(BAD_SCORES))
def test_a_bad_reply_to_an_evaluation_is_left_out_as_well(
    what: str, strategy: SchemeStrategy
) -> None:
    make, why = BAD_SCORES[what]
    sent = strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    messages = {message.metadata.dst_node_id: message for message in sent}
    bad = make(messages[11])
    replies = [answer(messages[12]), *([bad] if bad else []), answer(messages[13])]
    strategy.aggregate_evaluate(ROUND, replies)
    assert list(strategy.report.failures) == ["anna", "ben"]
    assert all(why in reason for reason in strategy.report.failures.values())
    assert strategy.report.scores.keys() == {"carla", "dan"}


@pytest.mark.parametrize("loss", [torch.nan, torch.inf])
def test_a_loss_may_be_nan_or_infinite_for_that_is_how_divergence_is_seen(
    loss: float, strategy: SchemeStrategy
) -> None:
    sent = strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    strategy.aggregate_evaluate(ROUND, [answer(m, metrics={"shared_loss": [loss]}) for m in sent])
    assert str(strategy.report.scores["dan"]["shared_loss"]) == str(loss)


@pytest.mark.parametrize(
    "keys",
    [
        {"server-optimizer": "adam"},
        {"server-optimizer": "yogi"},
        {"server-lr": 10.0},
        {"scheme": "scaffold", "scaffold.server-lr": 10.0},
        {"scheme": "fedu", "fedu.eta": 1e9},
    ],
)
def test_an_upload_that_would_overflow_at_the_server_is_left_out_and_named(
    keys: dict[str, Any],
) -> None:
    """1e38 is a number, but its square and ten times it are none in float32."""

    strategy = make_strategy(**keys)

    def uploads(messages: dict[int, Message], value: float) -> dict[int, Message]:
        values = VALUES | {11: value}
        return {n: answer(m, upload_of(strategy, m, values[n])) for n, m in messages.items()}

    before = flatten(strategy.server)
    strategy.take_in(ROUND, uploads(ask(strategy), 1e38).values())
    assert list(strategy.report.failures) == ["anna", "ben"]
    assert "so large" in strategy.report.failures["anna"]
    assert strategy.report.clients == ["carla", "dan"]
    assert is_finite(flatten(strategy.server))
    others = make_strategy(**keys)
    messages = uploads(ask(others), 0.0)
    others.take_in(ROUND, [messages[12], messages[13]])
    assert sha256(flatten(strategy.server)) == sha256(flatten(others.server))
    assert sha256(flatten(strategy.server)) != sha256(before)


def upload_of(strategy: SchemeStrategy, message: Message, value: float) -> Tree:
    """An upload of the scheme's shape that is full of one value."""
    scheme, count = strategy.settings.scheme, len(note_of(message)["clients"])
    like = flatten(scheme.upload_like(strategy.server))
    return {
        name: torch.full_like(
            one.expand(count, *one.shape) if name.partition("/")[0] in scheme.upload_rows else one,
            value,
        )
        for name, one in like.items()
    }


def test_a_round_in_which_every_upload_would_overflow_keeps_the_weights() -> None:
    strategy = make_strategy(**ADAM)
    kept = flatten(strategy.server)
    huge = {"w/x": torch.full((2,), 1e38)}
    strategy.take_in(ROUND, [answer(message, huge) for message in ask(strategy).values()])
    assert list(strategy.report.failures) == ["anna", "ben", "carla", "dan"]
    assert strategy.report.clients == []
    assert sha256(flatten(strategy.server)) == sha256(kept)


@pytest.mark.parametrize("training", [True, False])
def test_a_reply_that_is_too_large_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    strategy = make_strategy()
    if training:
        sent = ask(strategy)
    else:
        all_ = strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
        sent = {one.metadata.dst_node_id: one for one in all_}
    replies = [answer(one) for one in sent.values()]
    packed = wire.pack({"w/x": torch.zeros(2**20)})
    replies[0].content[wire.ARRAYS] = packed
    unpack, seen = wire.unpack, list[ArrayRecord]()

    def counted(record: ArrayRecord) -> Tree:
        seen.append(record)
        return unpack(record)

    monkeypatch.setattr(wire, "unpack", counted)
    if training:
        strategy.take_in(ROUND, replies)
    else:
        strategy.aggregate_evaluate(ROUND, replies)
    assert "bytes where at most" in strategy.report.failures["anna"]
    assert len(seen) == 2
    assert strategy.report.clients == ["carla", "dan"]


@pytest.mark.parametrize("what", ["shared_loss", "personal_loss"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scores_that_are_no_numbers_cost_their_client_alone_where_the_run_goes_on(
    what: str, value: float
) -> None:
    keys: dict[str, Any] = {"on-divergence": "drop"}
    strategy = make_strategy(**keys)
    messages = strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    replies = [answer(m) for m in messages]
    cast(dict[str, Any], replies[0].content[wire.METRICS])[what] = [value, 1.0]
    metrics = strategy.aggregate_evaluate(ROUND, replies)
    assert list(strategy.report.failures) == ["anna"]
    assert list(strategy.report.scores) == strategy.report.clients == ["ben", "carla", "dan"]
    assert metrics is not None
    assert all(abs(cast(float, mean)) < 1e3 for mean in metrics.values())


# Messages


@pytest.mark.parametrize(
    ("weights", "expected"), [("examples", [30.0, 10.0]), ("uniform", [1.0, 1.0])]
)
def test_a_node_gets_one_message_that_names_its_clients_and_their_weights(
    weights: str, expected: list[float]
) -> None:
    messages = ask(make_strategy(weights=weights))
    assert list(messages) == [11, 12, 13]
    note = note_of(messages[11])
    assert (note["round"], note["clients"], note["weights"]) == (ROUND, ["anna", "ben"], expected)
    sent = wire.unpack(messages[11].content.array_records[wire.ARRAYS])
    assert sent.keys() == {"w/x"}
    assert sent["w/x"].tolist() == [0.0, 0.0]


def test_only_nodes_with_a_chosen_client_get_a_message() -> None:
    strategy = make_strategy(**ONE_CLIENT)
    for round_ in range(1, 9):
        (message,) = ask(strategy, round_).values()
        (client,) = note_of(message)["clients"]
        assert strategy.roster.clients[client].node == message.metadata.dst_node_id


def test_a_client_that_was_not_chosen_may_not_reply() -> None:
    """Its node was asked for another client only."""
    strategy = make_strategy(**ONE_CLIENT)
    round_ = next(n for n in range(1, 99) if strategy.roster.sample(1, 0, n)[0].id == "anna")
    messages = ask(strategy, round_)
    strategy.aggregate_train(round_, [answer(messages[11], clients=["ben"])])
    assert "['ben']" in strategy.report.failures["anna"]
    assert strategy.server.w["x"].tolist() == [0.0, 0.0]


def test_everyone_is_evaluated_whoever_was_trained() -> None:
    strategy = make_strategy(**ONE_CLIENT)
    messages = strategy.configure_evaluate(ROUND, ArrayRecord(), ConfigRecord(), cast(Grid, None))
    named = [client for message in messages for client in note_of(message)["clients"]]
    assert named == ["anna", "ben", "carla", "dan"]


# Sampling


def roster(ids: list[str], nodes: int = 1, first: int = 0) -> Roster:
    clients = {
        one: Client(one, node=first + n % nodes, place=n % nodes, train_examples=1, test_examples=1)
        for n, one in enumerate(ids)
    }
    return Roster(clients)


IDS = [f"{number:03}" for number in range(40)]


@checked(deadline=None)
@given(st.integers(0, 40), st.integers(0, 99), st.integers(1, 99), st.permutations(IDS))
def test_a_sample_is_sorted_of_the_right_size_and_depends_on_seed_and_round_alone(
    count: int, seed: int, round_: int, order: list[str]
) -> None:
    chosen = [client.id for client in roster(IDS).sample(count, seed, round_)]
    assert chosen == sorted(set(chosen))
    assert len(chosen) == (count or len(IDS))
    elsewhere = roster(order, nodes=7, first=2**60).sample(count, seed, round_)
    assert [client.id for client in elsewhere] == chosen


def test_another_seed_or_round_gives_another_sample() -> None:
    samples = [roster(IDS).sample(10, seed, round_) for seed in (0, 1) for round_ in (1, 2)]
    assert len({tuple(client.id for client in sample) for sample in samples}) == 4


def test_a_sample_leaves_the_global_generators_alone() -> None:
    import random

    import numpy as np

    def states() -> Any:
        return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()

    before = states()
    roster(IDS).sample(10, 0, 1)
    assert states() == before


def test_every_client_is_chosen_sooner_or_later_and_equally_often() -> None:
    """400 rounds of 10 out of 40: each client 100 times, give or take 5 deviations of 8.7."""
    chosen = [one.id for round_ in range(400) for one in roster(IDS).sample(10, 0, round_)]
    counts = [chosen.count(one) for one in IDS]
    assert 56 < min(counts) <= max(counts) < 144


def test_more_clients_than_there_are_is_no_sample_of_our_own_making() -> None:
    """The run loop refuses such a key; here it must not invent clients."""
    assert len(roster(IDS).sample(41, 0, 1)) == 40


def test_a_client_keeps_its_place_when_its_node_gets_another_id() -> None:
    moved = make_strategy()
    moved.roster.clients = {
        one.id: replace(one, node={11: 93, 12: 92, 13: 91}[one.node]) for one in CLIENTS
    }
    groups = [note_of(message)["clients"] for message in ask(moved).values()]
    assert groups == [note_of(message)["clients"] for message in ask(make_strategy()).values()]
