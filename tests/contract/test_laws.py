"""Laws that hold for every scheme, whoever adds it."""

import copy
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType

from bouquet.engines import InlineGrid, simulate
from client_app.node import Problem, problem
from client_app.stores import DiskStore, read_state
from server_app.main import Job
from server_app.roster import exchange, message
from server_app.runfolder import RunFolder
from strategies import SCHEMES
from strategies.core import wire
from strategies.core.batches import Plan, draw, gather, steps
from strategies.core.descent import Sgd
from strategies.core.scheme import Federation, Member, Round, Scheme, Work
from strategies.core.state import Identity, PersonalState
from strategies.core.trees import flatten, pick, raw_bytes, unflatten
from strategies.settings import Settings, parse
from tests.conftest import Run, kebab

Start = Callable[..., Run]
Finished = Callable[[Settings], Run]
every_scheme = pytest.mark.parametrize("scheme", list(SCHEMES))

# Clients of unequal size and few of them a round, so that laws are not met by luck.
SMALL: dict[str, Any] = {
    "rounds": 3,
    "clients_per_round": 3,
    "local_steps": 4,
    "batch_size": 8,
    "nodes": 2,
    "data": {"clients": 5, "partition": "dirichlet"},
    "model": {"name": "mlp", "hidden": 8, "layers": 1},
}


# What a scheme cannot do without: linear models, everyone taking part.
NEEDS: dict[str, dict[str, Any]] = {
    "mocha": {"model": {"name": "linear"}},
    "dfedu": {"clients_per_round": 0},
    "centralized": {"clients_per_round": 0},
}


def configured(scheme: str, **changes: Any) -> Settings:
    return parse(kebab(SMALL | {"scheme": scheme} | changes | NEEDS.get(scheme, {})))


def one_client(settings: Settings) -> tuple[Problem, Work[Any], Any, Any]:
    """A client's work in a round, what it received, and what it keeps."""
    loaded, scheme, config = problem(settings), settings.scheme, settings.scheme_config
    own = loaded.data.clients["000"].train
    plan = Plan(4, 0, 8, lambda count: settings.scheme.draws(config, count))
    drawn = draw(["000"], [own], plan, (0, "train", 1), settings.dtype)
    batches = steps(pick(gather(loaded.data.x, loaded.data.y, drawn), 0))
    work = Work(config, loaded.task, Sgd(0.1), batches, steps=4)
    server = welcomed(settings, loaded)
    payload = mine(scheme, scheme.downlink(config, server, ["000"]))
    return loaded, work, payload, scheme.init_personal(config, loaded.task, len(own))


def federation(settings: Settings, loaded: Problem) -> Federation:
    held = loaded.data.clients
    members = {one: Member(len(held[one].train), 1.0) for one in sorted(held)}
    return Federation(members, settings.model.name, settings.run.lr, settings.run.local_steps)


def welcomed(settings: Settings, loaded: Problem) -> Any:
    """The server's state when everyone is there."""
    scheme, config = settings.scheme, settings.scheme_config
    server = scheme.init_server(config, loaded.task)
    return scheme.welcome(config, server, federation(settings, loaded))


def mine(scheme: Scheme, payload: Any) -> Any:
    """The payload of the only client it was made for."""
    own = {n: getattr(payload, n) for n in scheme.own}
    first = {
        n: v[0] if isinstance(v, torch.Tensor) else {k: t[0] for k, t in v.items()}
        for n, v in own.items()
    }
    return payload._replace(**first)


def as_round(settings: Settings, loaded: Problem, upload: Any) -> Round:
    """A round in which one client took part."""
    rows = {
        name: value.unsqueeze(0) if name.partition("/")[0] in settings.scheme.each else value
        for name, value in flatten(upload).items()
    }
    record = unflatten(settings.scheme.upload, rows)
    return Round(record, ("000",), federation(settings, loaded))


@every_scheme
def test_a_scheme_never_changes_what_it_is_given(scheme: str) -> None:
    settings = configured(scheme)
    one, config = settings.scheme, settings.scheme_config
    loaded, work, payload, personal = one_client(settings)
    _, personal = one.local_update(work, payload, personal)  # no longer the initial one
    server = welcomed(settings, loaded)
    given = (work.batches, payload, personal, loaded.task.initial, server)
    before = copy.deepcopy(given)
    upload, _ = one.local_update(work, payload, personal)
    one.predictor(work, payload, personal)
    one.aggregate(config, server, as_round(settings, loaded, upload))
    assert_same(given, before)


@every_scheme
def test_a_scheme_gives_the_same_answer_twice(scheme: str) -> None:
    settings = configured(scheme)
    _, work, payload, personal = one_client(settings)
    assert_same(
        settings.scheme.local_update(work, payload, personal),
        settings.scheme.local_update(work, payload, personal),
    )


@every_scheme
def test_no_personal_value_is_in_any_reply(scheme: str, tmp_path: Path) -> None:
    """Every byte and number of every reply, searched for what the clients keep.

    Each client has a node of its own, so that no mean hides it, and numbers are
    doubles, so that none turns up by chance.
    """
    settings = configured(
        scheme,
        nodes=5,
        dtype="float64",
        clients_per_round=0,
        store="disk",
        # A strong pull lets θ and w_i meet, to the last bit, where the loss is flat.
        pfedme={"lambda": 2.0},
    )
    loaded = problem(settings)
    with_grid(settings, lambda grid: replies_of(grid, settings, tmp_path, rounds=2), found := [])
    initial = numbers(v for v in loaded.task.initial.values())
    initial |= numbers(
        v
        for v in flatten(
            settings.scheme.init_personal(settings.scheme_config, loaded.task, 1)
        ).values()
    )
    secrets = {
        number
        for file in tmp_path.glob("*.safetensors")
        for number in numbers(read_state(file).tensors.values()) - initial
        if number not in (0.0, 1.0)
    }
    if scheme == "scaffold":
        # c_i starts at 0, so Δc_i is c_i where it moves for the first time: the method's own
        # doing. What is left are entries that had moved before.
        found = [reply for reply in found if reply.metadata.group_id == "2"]
        secrets = moved_twice(tmp_path) - initial
    assert bool(secrets) == settings.scheme.stateful
    if settings.scheme.exception:  # multi-task: a client's own model travels by definition
        return
    for reply in found:
        assert not secrets & sent_numbers(reply)
        sent = sent_bytes(reply)
        some = sorted(secrets)[:: max(1, len(secrets) // 50)]
        assert not [one for one in some if np.float64(one).tobytes() in sent]


@every_scheme
def test_personal_state_survives_the_disk_bit_for_bit(scheme: str, tmp_path: Path) -> None:
    settings = configured(scheme)
    _, work, payload, personal = one_client(settings)
    _, personal = settings.scheme.local_update(work, payload, personal)
    identity = Identity(scheme, settings.scheme.version, "shape", "000")
    DiskStore(tmp_path).save(PersonalState(identity, 1, flatten(personal)))
    state = DiskStore(tmp_path).load(identity, before=2)
    assert state is not None
    assert_same(unflatten(settings.scheme.personal, state.tensors), personal)


@every_scheme
@pytest.mark.parametrize("store", ["memory", "context", "disk"])
def test_a_message_delivered_twice_gets_the_same_reply(
    scheme: str, store: str, tmp_path: Path
) -> None:
    settings = configured(scheme, store=store, clients_per_round=0)

    def deliver(grid: InlineGrid) -> list[Message]:
        ask(grid, settings, tmp_path, round_=1)
        once = ask(grid, settings, tmp_path, round_=2)
        again = ask(grid, settings, tmp_path, round_=2)
        return [*once, *again]

    with_grid(settings, deliver, found := [])
    once, again = found[:2], found[2:]
    for one, other in zip(once, again, strict=True):
        assert sent_bytes(one) == sent_bytes(other)
        assert metrics_of(one) == metrics_of(other)


@every_scheme
def test_a_resumed_run_ends_as_if_never_stopped(
    scheme: str, start: Start, finished: Finished, tmp_path: Path
) -> None:
    whole = finished(configured(scheme, rounds=5))
    folder = tmp_path / "stopped"
    shutil.copytree(finished(configured(scheme, rounds=2)).path, folder)
    resumed = start(settings=configured(scheme, rounds=5), folder=folder, resume=True)
    assert_same_end(whole, resumed)


@every_scheme
def test_a_run_killed_within_a_round_resumes_exactly(
    scheme: str, start: Start, finished: Finished, tmp_path: Path
) -> None:
    """The clients have done round 3; the server only remembers round 2."""
    whole = finished(configured(scheme, rounds=5))
    two = finished(configured(scheme, rounds=2))
    folder = tmp_path / "killed"
    shutil.copytree(finished(configured(scheme)).path, folder)
    checkpoint = Path("server") / "checkpoint.safetensors"
    shutil.copy(two.path / checkpoint, folder / checkpoint)
    resumed = start(settings=configured(scheme, rounds=5), folder=folder, resume=True)
    assert_same_end(whole, resumed)


@every_scheme
def test_a_cohort_computes_what_its_clients_compute_alone(scheme: str, finished: Finished) -> None:
    """In double precision vmap and loop differ by rounding alone."""
    together = finished(configured(scheme, dtype="float64", cohort="vmap"))
    alone = finished(configured(scheme, dtype="float64", cohort="loop"))
    assert_close(together, alone, 1e-11)


@every_scheme
def test_local_epochs_of_unequal_clients_are_the_same_in_a_cohort(
    scheme: str, finished: Finished
) -> None:
    """Clients that finish their passes early wait without moving."""
    keys = {"dtype": "float64", "local_steps": 0, "local_epochs": 1, "batch_size": 64}
    together = finished(configured(scheme, cohort="vmap", **keys))
    alone = finished(configured(scheme, cohort="loop", **keys))
    assert_close(together, alone, 1e-11)


@every_scheme
def test_the_number_of_nodes_changes_rounding_alone(scheme: str, finished: Finished) -> None:
    two = finished(configured(scheme, dtype="float64", cohort="vmap"))
    five = finished(configured(scheme, dtype="float64", nodes=5))
    assert_close(two, five, 1e-11)


@pytest.fixture(scope="module")
def ray_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every scheme on Flower's simulation engine, which takes long enough to start once."""
    folder = tmp_path_factory.mktemp("ray")
    simulate([Job(configured(s), RunFolder(folder / s)) for s in SCHEMES], "ray")
    return {scheme: Run(folder / scheme) for scheme in SCHEMES}


@every_scheme
def test_inline_and_ray_end_with_the_same_bits(
    scheme: str, finished: Finished, ray_runs: dict[str, Run]
) -> None:
    assert_same_end(finished(configured(scheme)), ray_runs[scheme])


@every_scheme
def test_a_run_stopped_on_ray_goes_on_inline(
    scheme: str, start: Start, finished: Finished, ray_runs: dict[str, Run], tmp_path: Path
) -> None:
    """Its folder holds all there is to know, personal state included."""
    folder = tmp_path / "moved"
    shutil.copytree(ray_runs[scheme].path, folder)
    resumed = start(settings=configured(scheme, rounds=5), folder=folder, resume=True)
    assert_same_end(finished(configured(scheme, rounds=5)), resumed)


def moved_twice(folder: Path) -> set[float]:
    """Numbers of the newest states at places that were not 0 in the states before."""
    found: set[float] = set()
    for file in folder.glob("*.previous.safetensors"):
        before = read_state(file).tensors
        newest = read_state(file.with_name(file.name.replace(".previous", ""))).tensors
        found |= {n for k, v in newest.items() for n in v[before[k] != 0].tolist()}
    return found


def with_grid(
    settings: Settings, job: Callable[[InlineGrid], list[Message]], found: list[Message]
) -> None:
    """Run a job against nodes that live in this process, and keep the replies it returns."""
    grid = InlineGrid(settings.run.nodes)
    try:
        found += job(grid)
    finally:
        grid.close()


def replies_of(grid: InlineGrid, settings: Settings, folder: Path, rounds: int) -> list[Message]:
    return [
        reply
        for round_ in range(1, rounds + 1)
        for kind in (MessageType.TRAIN, MessageType.EVALUATE)
        for reply in ask(grid, settings, folder, round_, kind)
    ]


def ask(
    grid: InlineGrid,
    settings: Settings,
    folder: Path,
    round_: int,
    kind: str = MessageType.TRAIN,
) -> list[Message]:
    """Send the nodes a message about all their clients; replies in the order of the nodes."""
    scheme, config = settings.scheme, settings.scheme_config
    loaded = problem(settings)
    server = welcomed(settings, loaded)
    nodes = sorted(grid.get_node_ids())
    messages = []
    for place, node in enumerate(nodes):
        clients = sorted(loaded.data.clients)[place :: len(nodes)]
        note = {
            "round": round_,
            "clients": clients,
            "weights": [1.0] * len(clients),
            "evaluate": True,
            "state-dir": str(folder),
            "predictors-dir": "",
            "adapt": -1,
        }
        tree = flatten(scheme.downlink(config, server, clients))
        messages.append(message(settings, node, kind, round_, tree, ConfigRecord(note)))
    replies = exchange(grid, messages, 0.0, threading.Event())
    assert [reply.error for reply in replies if reply.has_error()] == []
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)


def sent_bytes(reply: Message) -> bytes:
    return b"".join(a.data for _, a in sorted(reply.content.array_records[wire.ARRAYS].items()))


def sent_numbers(reply: Message) -> set[float]:
    found = numbers(wire.unpack(reply.content.array_records[wire.ARRAYS]).values())
    for value in reply.content.metric_records[wire.METRICS].values():
        found |= {float(one) for one in (value if isinstance(value, list) else [value])}
    return found


def metrics_of(reply: Message) -> dict[str, Any]:
    found = reply.content.metric_records[wire.METRICS].items()
    return {name: value for name, value in found if not name.startswith("seconds")}


def numbers(tensors: Any) -> set[float]:
    return {number for tensor in tensors for number in tensor.double().flatten().tolist()}


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, whatever the nesting."""
    if isinstance(one, torch.Tensor):
        assert raw_bytes(one) == raw_bytes(other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    else:
        for part, twin in zip(one, other, strict=True):
            assert_same(part, twin)


def assert_same_end(one: Run, other: Run) -> None:
    assert one.sha == other.sha
    assert one.clients == other.clients


def assert_close(one: Run, other: Run, tolerance: float) -> None:
    for row, twin in zip(one.clients, other.clients, strict=True):
        for name in row:
            if name not in ("client", "node"):
                assert float(row[name]) == pytest.approx(float(twin[name]), abs=tolerance)
    assert one.summary["shared"]["loss"]["mean"] == pytest.approx(
        other.summary["shared"]["loss"]["mean"], abs=tolerance
    )
