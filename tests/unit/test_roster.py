"""Who takes part: introductions are checked like uploads, and a bad one costs only its node."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from bouquet.bound import name_for
from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.seeding import generator
from bouquet.flower import wire
from bouquet.server_app.membership import Client, Roster
from bouquet.settings import parse
from bouquet.storage.runfolder import RunFolder
from tests.conftest import Run
from tests.fuzzing import Told, identity, impatient, introduction

CLASSES = 3


@pytest.fixture(autouse=True)
def hurry() -> Iterator[None]:
    with identity(), impatient():
        yield


def honest(node: int, classes: int = CLASSES) -> RecordDict:
    return introduction(generator(0, "honest"), node, classes)


def met(deployed: bool, *said: RecordDict | Error, least: int = 0) -> Roster:
    """The roster after nodes 1, 2, ... have introduced themselves."""
    grid, roster = Told(dict(enumerate(said, start=1))), Roster()
    settings = parse({"scheme": "fedavg", "min-clients": least})
    try:
        roster.update(grid, settings, "", threading.Event(), deployed)
    finally:
        grid.close()
    return roster


def numbers(**changes: Any) -> Callable[[RecordDict], None]:
    return lambda content: cast(dict[str, Any], content[wire.METRICS]).update(changes)


def words(**changes: Any) -> Callable[[RecordDict], None]:
    return lambda content: cast(dict[str, Any], content[wire.NOTE]).update(changes)


def lacking(record: str, name: str) -> Callable[[RecordDict], None]:
    return lambda content: cast(dict[str, Any], content[record]).pop(name)


def init(value: torch.Tensor) -> Callable[[RecordDict], None]:
    return lambda content: content.update(arrays=wire.pack({"init": value}))


BAD: dict[str, tuple[Callable[[RecordDict], object], str]] = {
    "no examples": (numbers(train_examples=[0, 5]), "from 1"),
    "fewer than none": (numbers(test_examples=[-1, 5]), "from 1"),
    "half an example": (numbers(train_examples=[1.5, 2.0]), "whole number"),
    "NaN examples": (numbers(train_examples=[float("nan"), 1.0]), "whole number"),
    "too many examples": (numbers(train_examples=[2**62, 1]), "whole number"),
    "too few counts": (numbers(test_examples=[5]), "entries"),
    "one number for all": (numbers(train_examples=5), "must be a list"),
    "more nodes than there can be": (numbers(nodes=2**62), "nodes must be"),
    "no nodes": (numbers(nodes=0), "nodes must be"),
    "label counts of the wrong length": (numbers(label_counts=[1, 2]), "label_counts must have"),
    "negative label counts": (numbers(label_counts=[-1] * 6), "label_counts must be"),
    "an endless example": (numbers(input_shape=[2**40]), "input_shape must be"),
    "a large example": (numbers(input_shape=[2**20, 2**20]), "at most"),
    "an example of nothing": (numbers(input_shape=[0]), "input_shape must be"),
    "another shape": (numbers(input_shape=[5]), "disagree on the data's shape"),
    "other classes": (numbers(classes=4, label_counts=[1] * 8), "disagree on the number of cl"),
    "fractional classes": (numbers(classes=3.0), "classes must be"),
    "an unknown number": (numbers(alpha=1.0), "unknown 'alpha'"),
    "ids that are no text": (words(clients=[1, 2]), "clients must be text"),
    "an empty id": (words(clients=["a", ""]), "different ids"),
    "an id twice": (words(clients=["a", "a"]), "different ids"),
    "an unknown word": (words(more="x"), "unknown 'more'"),
    "too few names of classes": (words(**{"class-names": ["a"]}), "class-names must have 3"),
    "no classes": (lacking(wire.METRICS, "classes"), "lack classes"),
    "no clients": (lacking(wire.NOTE, "clients"), "lack clients"),
    "a start where there is none": (init(torch.zeros(4)), "unknown 'init'"),
    "no note": (lambda content: content.pop(wire.NOTE), "lack note"),
    "arrays that are none": (
        lambda content: content.update(
            arrays=ArrayRecord({"init": Array("float32", (4,), "numpy.ndarray", b"PK")})
        ),
        "malformed",
    ),
}


@pytest.mark.parametrize("deployed", [False, True])
@pytest.mark.parametrize("what", list(BAD))
def test_a_bad_introduction_is_left_out_and_the_others_go_on(what: str, deployed: bool) -> None:
    change, why = BAD[what]
    bad = honest(2)
    change(bad)
    roster = met(deployed, honest(1), bad)
    assert {one: who.node for one, who in roster.clients.items()} == {"1-0": 1, "1-1": 1}
    with pytest.raises(RunFailed, match=why):
        raise roster.left_out[2]


def test_it_is_told_whom_a_deployment_waits_for_and_who_is_no_good(tmp_path: Path) -> None:
    bad, folder, stop = honest(2), RunFolder(tmp_path), threading.Event()
    numbers(train_examples=[-1, 5])(bad)
    said: list[str] = []

    def tell(words: str) -> None:
        folder.write_waiting(words)
        said.append(folder.read_waiting())
        if "left out" in words:
            stop.set()  # it would wait for ever

    grid, roster = Told({1: honest(1), 2: bad}), Roster()
    four, two = (parse({"scheme": "fedavg", "min-clients": least}) for least in (4, 2))
    try:
        with pytest.raises(RunFailed, match="interrupted"):
            roster.update(grid, four, "", stop, True, tell)
        assert re.fullmatch(
            r"Waiting for clients: 2 of 4 are there\. Node 2 \(of no client by its key\) is left "
            r"out: .*train_examples must be .* from 1 .*",
            said[-1],
        )
        stop.clear()
        roster.update(grid, two, "", stop, True, tell)
        assert said[-1] == ""
    finally:
        grid.close()


@pytest.mark.parametrize(
    "start",
    [torch.ones(4), torch.zeros(3), torch.zeros(4, 1), torch.tensor([0.0, 0, 0, torch.nan])],
)
def test_a_quadratic_problem_starts_in_one_place(start: torch.Tensor) -> None:
    bad = honest(2, classes=0)
    init(start)(bad)
    roster = met(False, honest(1, classes=0), bad)
    assert roster.left_out.keys() == {2}
    assert roster.facts is not None
    assert roster.facts.init is not None
    assert roster.facts.init.tolist() == [0.0] * 4


def test_names_of_classes_are_welcome() -> None:
    said = [honest(1), honest(2)]
    for one in said:
        words(**{"class-names": ["cat", "dog", "other"]})(one)
    assert {who.node for who in met(False, *said).clients.values()} == {1, 2}


@pytest.mark.parametrize("deployed", [False, True])
def test_a_run_ends_with_the_reason_where_no_node_is_any_good(deployed: bool) -> None:
    bad = honest(1)
    numbers(classes=-1)(bad)
    with pytest.raises(RunFailed, match=r"A node could not introduce itself: .*classes must be"):
        met(deployed, bad, Error(2, "out of memory"))


def test_what_a_node_says_is_wrong_with_the_input_ends_a_simulation() -> None:
    refused = wire.content({}, MetricRecord(), ConfigRecord({"refused": "data.path is nowhere."}))
    with pytest.raises(BadInput, match=r"^data.path is nowhere\.$"):
        met(False, honest(1), refused)


def test_a_device_whose_own_input_is_wrong_is_left_out_unless_it_is_alone() -> None:
    refused = wire.content({}, MetricRecord(), ConfigRecord({"refused": "data.path is nowhere."}))
    roster = met(True, honest(1), refused)
    assert {who.node for who in roster.clients.values()} == {1}
    with pytest.raises(BadInput, match=r"^data.path is nowhere\.$"):
        met(True, refused)
    with pytest.raises(BadInput, match=r"^data.path is nowhere\.$"):
        met(True, refused, refused, least=2)  # all who are there, and they would have been enough


def waited(roster: Roster, said: dict[int, RecordDict | Error], least: int, change: Any) -> None:
    """Let a roster wait for clients; after a while something changes."""
    grid = Told(said)
    timer = threading.Timer(0.3, change)
    timer.start()
    try:
        with patch("bouquet.server_app.membership.ASK_AGAIN", 0.4):
            settings = parse({"scheme": "fedavg", "min-clients": least})
            roster.update(grid, settings, "", threading.Event(), deployed=True)
    finally:
        timer.join()
        grid.close()


def test_a_device_whose_input_is_wrong_is_waited_for_like_one_that_is_not_there() -> None:
    """Two clients are there and three must be: a bad node does not end what an absent one would
    not, and is asked again.
    """
    refused = wire.content({}, MetricRecord(), ConfigRecord({"refused": "data.path is nowhere."}))
    said: dict[int, RecordDict | Error] = {1: honest(1), 2: refused}
    roster = Roster()
    waited(roster, said, 3, lambda: said.update({2: honest(2)}))
    assert roster.nodes == {1, 2}
    assert roster.take_refusals() == {2: "data.path is nowhere."}
    assert roster.take_refusals() == {}


@pytest.mark.parametrize("deployed", [False, True])
def test_what_the_data_are_like_is_what_most_nodes_say_not_the_first(deployed: bool) -> None:
    liar = honest(1)
    numbers(input_shape=[2**20])(liar)
    roster = met(deployed, liar, honest(2), honest(3), least=4)
    assert roster.facts is not None
    assert roster.facts.input_shape == (4,)
    assert {who.node for who in roster.clients.values()} == {2, 3}
    assert roster.left_out.keys() == {1}


def test_once_rounds_have_been_nobody_outvotes_those_who_were_there() -> None:
    others: dict[int, RecordDict | Error] = {node: honest(node) for node in (2, 3)}
    for one in others.values():
        numbers(input_shape=[5])(cast(RecordDict, one))
    roster = met(True, honest(1))
    grid = Told({1: honest(1), **others})
    try:
        roster.update(grid, parse({"scheme": "fedavg"}), "", threading.Event(), deployed=True)
    finally:
        grid.close()
    assert roster.nodes == {1}
    assert roster.left_out.keys() == {2, 3}


@pytest.mark.parametrize("what", ["train_examples", "test_examples"])
def test_a_device_that_says_it_has_more_than_it_may_is_left_out(what: str) -> None:
    boast = honest(2)
    numbers(**{what: [1, 10**12]})(boast)
    roster = met(True, honest(1), boast)
    assert {who.node for who in roster.clients.values()} == {1}
    assert "from 1 to 1000000" in str(roster.left_out[2])
    assert met(False, honest(1), boast).left_out == {}  # who simulates knows what he has


def bound(names: dict[int, str], said: dict[int, RecordDict], roster: Roster) -> Roster:
    """The roster after nodes whose keys are registered for some clients have introduced themselves.

    Those without an introduction are away.
    """
    grid = Told({node: said.get(node, honest(node)) for node in range(1, max(said) + 1)})
    there = {node: name for node, name in names.items() if node in said}
    try:
        with patch("bouquet.flower.exchange.nodes_of", lambda grid: there):
            settings = parse({"scheme": "fedavg"})
            roster.update(grid, settings, "", threading.Event(), deployed=True)
    finally:
        grid.close()
    return roster


FOR_1, FOR_2 = name_for(["1-0", "1-1"]), name_for(["2-0", "2-1"])


@pytest.mark.parametrize("away", [False, True])
def test_a_node_that_says_it_is_anothers_client_is_left_out_also_while_that_is_away(
    away: bool,
) -> None:
    liar = honest(2)
    words(clients=["2-0", "1-0"])(liar)
    said = {2: liar, 3: honest(3)} if away else {1: honest(1), 2: liar, 3: honest(3)}
    names = {1: FOR_1, 2: FOR_2, 3: name_for(["3-0", "3-1"])}
    roster = bound(names, said, Roster())
    assert {who.node for who in roster.clients.values()} == said.keys() - {2}
    assert "1-0" in str(roster.left_out[2])
    assert "not registered for" in roster.take_refusals()[2]


def test_a_key_that_is_bound_to_none_may_have_clients_that_are_nobodys() -> None:
    liar = honest(3)
    words(clients=["3-0", "1-1"])(liar)
    names = {1: FOR_1, 2: "the one in the hall", 3: ""}
    roster = bound(names, {1: honest(1), 2: honest(2), 3: liar}, Roster())
    assert {who.node for who in roster.clients.values()} == {1, 2}
    assert roster.left_out.keys() == {3}


def test_a_client_whose_key_was_rotated_is_where_the_new_key_is() -> None:
    roster = bound({1: FOR_1}, {1: honest(1)}, Roster())
    moved = honest(2)
    words(clients=["1-0", "1-1"])(moved)
    bound({2: FOR_1}, {2: moved}, roster)
    assert {who.node for who in roster.clients.values()} == {2}
    assert roster.left_out == {}


def test_an_introduction_of_too_many_bytes_is_refused_by_its_size() -> None:
    large = honest(2)
    words(**{"class-names": ["x" * 2**25] * 3})(large)
    roster = met(True, honest(1), large)
    assert "bytes where at most" in str(roster.left_out[2])


def test_a_simulation_does_not_wait_forever_for_nodes_that_are_not_there() -> None:
    many = honest(1)
    numbers(nodes=500)(many)
    with pytest.raises(RunFailed, match="Of 500 nodes, 1 introduced"):
        met(False, many)


def test_how_many_nodes_a_device_says_there_are_does_not_matter() -> None:
    many = honest(1)
    numbers(nodes=500)(many)
    assert met(True, many).nodes == {1}


def test_a_node_that_was_left_out_is_asked_again_in_the_next_round() -> None:
    bad = honest(2)
    numbers(nodes=0)(bad)
    said: dict[int, RecordDict | Error] = {1: honest(1), 2: bad}
    grid, roster = Told(said), Roster()
    try:
        for _ in range(2):
            roster.update(grid, parse({"scheme": "fedavg"}), "", threading.Event())
            numbers(nodes=2)(bad)  # it has come to its senses
    finally:
        grid.close()
    assert roster.nodes == {1, 2}
    assert roster.left_out == {}


def test_who_is_there_is_worked_out_only_when_somebody_comes() -> None:
    everybody = {one: Client(one, 1, 0, 5, 5) for one in ("b", "a", "c")}
    roster = Roster(everybody)
    roster.hold_back(1, until=4)
    early = roster.present(1)
    assert list(early) == ["a", "b"]
    assert roster.present(3) is early
    assert list(roster.present(4)) == ["a", "b", "c"]
    assert list(roster.present(2)) == ["a", "b"]
    assert everybody["c"].joins == 0  # what others hold on to does not change under their hands


def living(count: int, nodes: int) -> Roster:
    """Clients 00, 01, ... of a simulation: every n-th on a node."""
    ids = [f"{n:02}" for n in range(count)]
    return Roster({one: Client(one, 70 + n % nodes, n % nodes, 5, 5) for n, one in enumerate(ids)})


def test_where_everybody_takes_part_they_are_dealt_out_as_they_live() -> None:
    roster = living(7, 3)
    everybody = roster.sample(0, 0, 1)
    assert roster.dealt(everybody) == everybody


def test_a_sample_is_dealt_out_evenly_whoever_is_in_it() -> None:
    roster = living(20, 2)
    evens = [roster.clients[f"{n:02}"] for n in range(0, 20, 4)]  # all live on one node
    dealt = roster.dealt(evens)
    assert [one.id for one in dealt] == [one.id for one in evens]
    assert [one.place for one in dealt] == [0, 1, 0, 1, 0]
    assert [one.node for one in dealt] == [70, 71, 70, 71, 70]


@pytest.mark.parametrize("store", ["memory", "disk", "context"])
def test_whichever_node_trains_a_client_goes_on_from_its_own_state(
    start: Callable[..., Run], store: str
) -> None:
    keys = {"rounds": 6, "clients_per_round": 3, "dtype": "float64", "data": {"clients": 7}}
    alone = start(scheme="apfl", nodes=1, **keys)
    shared_out = start(scheme="apfl", nodes=3, store=store, **keys)
    for client in ("000", "003", "006"):
        for name, value in alone.personal(client).items():
            assert abs(shared_out.personal(client)[name] - value).max(initial=0.0) < 1e-12
