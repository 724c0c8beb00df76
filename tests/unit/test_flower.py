"""Our strategy and ClientApp in an app of somebody's own, with its own model and data."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bouquet import BadInput, RunFailed
from bouquet.client_app.stores import read_state
from bouquet.engines import LocalNodes
from bouquet.flower import PersonalizedStrategy, client_app, wire
from bouquet.server_app.membership import message
from bouquet.settings import parse
from bouquet.strategies.apfl import APFL

CLASSES, FEATURES = 3, 5
QUICK: dict[str, Any] = {"local_steps": 2, "batch_size": 4, "lr": 0.1}


class Net(nn.Module):
    """A user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.head(self.body(x).relu())
        return said


@dataclass(frozen=True)
class Slower(APFL):
    """A user's own scheme."""

    name = "slower-in-an-app"


def shaped(shape: tuple[int, ...], classes: int) -> nn.Module:
    assert (shape, classes) == ((FEATURES,), CLASSES)
    return Net()


def examples(place: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(place)
    x, y = rng.normal(size=(12, FEATURES)), rng.integers(CLASSES, size=12)
    return x[:8], y[:8], x[8:], y[8:]


def load(context: Context) -> tuple[Any, Any, Any, Any]:
    return examples(int(context.node_config["partition-id"]))


def initial(seed: int = 0, dtype: torch.dtype = torch.float32) -> ArrayRecord:
    torch.manual_seed(seed)
    return ArrayRecord(Net().to(dtype).state_dict())


@contextmanager
def nodes(app: ClientApp, count: int = 3) -> Iterator[LocalNodes]:
    grid = LocalNodes(count, app)
    try:
        yield grid
    finally:
        grid.close()


def train(
    strategy: PersonalizedStrategy,
    app: ClientApp | None = None,
    arrays: ArrayRecord | None = None,
    rounds: int = 2,
) -> Result:
    with nodes(app or client_app(Net, load, classes=CLASSES)) as grid:
        return strategy.start(grid, initial() if arrays is None else arrays, num_rounds=rounds)


def same(one: Result, other: Result) -> bool:
    weights = [wire.unpack(result.arrays) for result in (one, other)]
    equal = all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    return equal and one.evaluate_metrics_clientapp == other.evaluate_metrics_clientapp


def test_the_result_is_the_shared_model() -> None:
    result = train(PersonalizedStrategy(APFL(alpha=0.3), **QUICK))
    Net().load_state_dict(result.arrays.to_torch_state_dict())
    before = initial().to_torch_state_dict()
    after = result.arrays.to_torch_state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)


def test_a_schemes_keys_reach_the_nodes() -> None:
    """α = 0 predicts with the shared model, α = 1 does not."""
    ends = {}
    for alpha in (0.0, 1.0):
        result = train(PersonalizedStrategy(APFL(alpha=alpha, adaptive=False), **QUICK))
        (metrics,) = result.evaluate_metrics_clientapp.values()
        ends[alpha] = metrics["personal_loss"] == metrics["shared_loss"]
    assert ends == {0.0: True, 1.0: False}


def test_personal_weights_start_where_the_server_says() -> None:
    """Not at the node's own draw: all weights 0 mean a loss of log(classes)."""
    zeros = ArrayRecord({n: torch.zeros_like(v) for n, v in Net().state_dict().items()})
    still = PersonalizedStrategy(APFL(alpha=1.0), local_steps=1, lr=1e-20)
    (metrics,) = train(still, arrays=zeros, rounds=1).evaluate_metrics_clientapp.values()
    assert metrics["personal_loss"] == pytest.approx(math.log(CLASSES), rel=1e-6)


def test_a_strategy_can_be_started_again_on_the_same_nodes() -> None:
    """Their Context still holds what is personal in the first run."""
    strategy = PersonalizedStrategy("apfl", **QUICK)
    with nodes(client_app(Net, load, classes=CLASSES)) as grid:
        first = strategy.start(grid, initial(), num_rounds=2)
        assert same(strategy.start(grid, initial(), num_rounds=2), first)


@pytest.mark.parametrize("model", [shaped, lambda: Net(), Net()], ids=["shaped", "plain", "module"])
def test_a_model_may_be_a_class_a_function_or_a_module(model: Any) -> None:
    expected = train(PersonalizedStrategy("apfl", **QUICK))
    app = client_app(model, load, classes=CLASSES)
    assert same(train(PersonalizedStrategy("apfl", **QUICK), app), expected)


def test_data_may_be_everybodys_by_client() -> None:
    """A partition is then a node's share of the clients."""
    expected = train(PersonalizedStrategy("apfl", **QUICK))
    app = client_app(Net, {f"{place:03d}": examples(place) for place in range(3)})
    assert same(train(PersonalizedStrategy("apfl", **QUICK), app), expected)


def test_the_arrays_type_is_the_runs() -> None:
    result = train(PersonalizedStrategy("apfl", **QUICK), arrays=initial(dtype=torch.float64))
    assert {value.dtype for value in wire.unpack(result.arrays).values()} == {torch.float64}


def test_evaluations_are_as_often_as_asked_and_at_the_end() -> None:
    asked = []

    def watch(message: Message, context: Context, follow: Any) -> Message:
        asked.append((message.metadata.message_type, message.metadata.group_id))
        reply: Message = follow(message, context)
        return reply

    app = client_app(Net, load, classes=CLASSES, mods=[watch])
    result = train(PersonalizedStrategy("apfl", eval_every=2, **QUICK), app, rounds=3)
    rounds = [round_ for kind, round_ in asked if kind == MessageType.EVALUATE]
    assert sorted(set(rounds)) == ["2", "3"]
    assert list(result.evaluate_metrics_clientapp) == [2, 3]
    assert set(result.evaluate_metrics_clientapp[3]) == {
        f"{whose}_{what}" for whose in ("shared", "personal") for what in ("loss", "accuracy")
    }


def test_some_parameters_may_be_personal() -> None:
    """What is personal never comes back to the server: it stays as it started."""
    strategy = PersonalizedStrategy("fedalt", personal={"split": "head.*"}, **QUICK)
    before, after = wire.unpack(initial()), wire.unpack(train(strategy).arrays)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"body.weight", "body.bias"}


def test_a_scheme_from_outside_needs_the_apps_consent() -> None:
    strategy = PersonalizedStrategy(Slower(alpha=0.3), **QUICK)
    with pytest.raises(BadInput, match=r"is not one of this app's; client_app\(schemes="):
        train(strategy)
    app = client_app(Net, load, classes=CLASSES, schemes=[Slower])
    assert same(train(strategy, app), train(PersonalizedStrategy(APFL(alpha=0.3), **QUICK)))


def test_a_run_that_diverges_stops() -> None:
    with pytest.raises(RunFailed, match=r"apfl diverged in round 1: .* Lower lr \(1000000000.0\)"):
        train(PersonalizedStrategy("apfl", local_steps=20, lr=1e9))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"rounds": 3}, r"rounds is no key of a strategy; see strategy.start\(num_rounds"),
        ({"data": {"name": "digits"}}, "data.name is no key of a strategy; see client_app"),
        ({"join": {"clients": 1}}, "join.clients is no key of a strategy; see bouquet simulate"),
        ({"lr": -1.0}, "lr must be"),
        ({"pace": 1}, "pace"),
    ],
)
def test_wrong_keys_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        PersonalizedStrategy("apfl", **keys)


def test_what_is_not_federated_is_refused() -> None:
    with pytest.raises(BadInput, match="centralized"):
        PersonalizedStrategy("centralized")


def test_keys_in_flowers_configs_are_refused_not_ignored() -> None:
    with (
        nodes(client_app(Net, load, classes=CLASSES)) as grid,
        pytest.raises(BadInput, match="train_config and evaluate_config must be empty"),
    ):
        PersonalizedStrategy("apfl").start(grid, initial(), train_config=ConfigRecord({"lr": 0.01}))


def test_arrays_of_another_model_are_refused() -> None:
    other = ArrayRecord(nn.Linear(2, 2).state_dict())
    with pytest.raises(RunFailed, match=r"No client finished a single round: .* do not fit this"):
        train(PersonalizedStrategy("apfl", **QUICK), arrays=other)


def test_arrays_of_whole_numbers_are_refused() -> None:
    whole = ArrayRecord({"w": torch.zeros(2, dtype=torch.int64)})
    with pytest.raises(BadInput, match=r"initial_arrays must all be float32, .* not int64"):
        train(PersonalizedStrategy("apfl", **QUICK), arrays=whole)


def test_a_function_must_say_how_many_classes_there_are() -> None:
    with pytest.raises(BadInput, match="classes must be given where data is a function"):
        client_app(Net, load)


def test_a_label_too_many_is_told_to_the_server() -> None:
    def wrong(context: Context) -> tuple[Any, Any, Any, Any]:
        x, y, x_test, y_test = load(context)
        return x, y + CLASSES, x_test, y_test

    with pytest.raises(BadInput, match=r"data has the label \d, but there are 3 classes"):
        train(PersonalizedStrategy("apfl"), client_app(Net, wrong, classes=CLASSES))


class Normed(nn.Module):
    """A user's own with batch norm, and a constant that is drawn at random."""

    features: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(FEATURES, 4))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.head(self.norm(x @ self.features))
        return said


def normed(seed: int = 0) -> Normed:
    """As its user has it, trained a little already."""
    torch.manual_seed(seed)
    module = Normed()
    module(torch.randn(50, FEATURES))
    return module


@pytest.mark.parametrize(
    ("scheme", "keys", "still"),
    [
        ("apfl", {}, ["features"]),
        ("fedbn", {}, ["features", "norm"]),
        ("fedavg", {"statistics": "frozen"}, ["features", "norm.running", "norm.num"]),
        ("fedavg", {"server_optimizer": "momentum"}, ["features"]),
    ],
)
def test_a_model_may_have_batch_norm(scheme: str, keys: dict[str, Any], still: list[str]) -> None:
    """The result is a whole state again, in PyTorch's types; all moves but what must not."""
    module, app = normed(), client_app(Normed, load, classes=CLASSES)
    strategy = PersonalizedStrategy(scheme, **QUICK, **keys)
    result = train(strategy, app, ArrayRecord(module.state_dict()))
    before, after = module.state_dict(), result.arrays.to_torch_state_dict()
    Normed().load_state_dict(after, strict=True)
    assert {n: v.dtype for n, v in after.items()} == {n: v.dtype for n, v in before.items()}
    kept = {name for name, value in before.items() if torch.equal(value, after[name])}
    assert kept == {name for name in before if name.startswith(tuple(still))}


@pytest.mark.parametrize("statistics", ["average", "frozen"])
def test_nodes_use_the_buffers_that_the_server_has(statistics: str) -> None:
    """Not those of a model they made themselves: after tiny steps they say what it says."""
    module, app = normed().eval(), client_app(Normed, load, classes=CLASSES)
    arrays = ArrayRecord(module.state_dict())
    keys: dict[str, Any] = {"local_steps": 1, "lr": 1e-20, "statistics": statistics}
    (metrics,) = train(
        PersonalizedStrategy("fedavg", **keys), app, arrays, rounds=1
    ).evaluate_metrics_clientapp.values()
    losses = []
    with torch.no_grad():
        for place in range(3):
            _, _, x_test, y_test = map(torch.as_tensor, examples(place))
            losses.append(float(cross_entropy(module(x_test.float()), y_test)))
    same = metrics["shared_loss"] == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert same == (statistics == "frozen")  # else they have seen batches


def test_arrays_without_buffers_are_refused() -> None:
    arrays = ArrayRecord({n: p.detach() for n, p in normed().named_parameters()})
    with pytest.raises(BadInput, match=r"whole state_dict\(\), and lack 'norm.running_mean'"):
        train(
            PersonalizedStrategy("apfl", **QUICK),
            client_app(Normed, load, classes=CLASSES),
            arrays,
        )


def order(kind: str, config: Mapping[str, Any], note: Mapping[str, Any]) -> tuple[Message, Context]:
    """A message to a node, and its Context."""
    with nodes(client_app(Net, load, classes=CLASSES)):  # so that messages can be made
        weights = wire.unpack(initial())
        words: dict[str, Any] = {
            "round": 1,
            "clients": ["000"],
            "weights": [1.0],
            "state-dir": "run",
            "lr": 0.1,
        }
        tree = {f"w/{name}": value for name, value in weights.items()}
        told = parse({"scheme": "apfl", "local-steps": 2})
        one = message(told, 1, kind, 1, tree, ConfigRecord(words | dict(note)))
    node = {"partition-id": 0, "num-partitions": 1}
    return one, Context(1, 1, node | dict(config), RecordDict(), {})


@pytest.mark.parametrize("key", ["scheme", "pipeline"])
def test_a_message_cannot_have_code_loaded(key: str, tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    asked, context = order(MessageType.TRAIN, {}, {})
    asked.content.config_records[wire.SETTINGS][key] = f"{file}:Name" + ":3" * (key == "pipeline")
    with pytest.raises(BadInput):
        client_app(Net, load, classes=CLASSES)(asked, context)
    assert not (tmp_path / "ran").exists()


def test_a_message_cannot_choose_model_or_data() -> None:
    asked, context = order(MessageType.TRAIN, {}, {})
    app = client_app(Net, load, classes=CLASSES)
    expected = wire.unpack(app(asked, context).content.array_records[wire.ARRAYS])
    asked, context = order(MessageType.TRAIN, {}, {})
    told = asked.content.config_records[wire.SETTINGS]
    told.update({"model.name": "no.such:model", "data.name": "folder", "data.path": "/nowhere"})
    found = wire.unpack(app(asked, context).content.array_records[wire.ARRAYS])
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_a_servers_paths_are_no_places_to_write_to(tmp_path: Path) -> None:
    folders = {f"{what}-dir": str(tmp_path) for what in ("predictors", "outcomes", "diagnostics")}
    asked, context = order(MessageType.TRAIN, {}, folders | {"state-dir": str(tmp_path)})
    app = client_app(Net, load, classes=CLASSES)
    app(asked, context)
    asked, _ = order(MessageType.EVALUATE, {}, folders | {"state-dir": str(tmp_path)})
    app(asked, context)
    assert not list(tmp_path.iterdir())
    assert context.state  # that is where it is


@pytest.mark.parametrize(
    ("config", "client"), [({}, "000"), ({"client-id": "ward-7"}, "ward-7")], ids=["place", "name"]
)
def test_a_node_with_a_state_dir_keeps_personal_state_on_disk(
    config: dict[str, str], client: str, tmp_path: Path
) -> None:
    """It outlives the Context, which is empty when the node comes back."""
    config = config | {"state-dir": str(tmp_path)}
    app, note = client_app(Net, load, classes=CLASSES), {"clients": [client]}
    app(*order(MessageType.TRAIN, config, note))
    file = tmp_path / "runs" / "run" / f"{client}.safetensors"
    first = read_state(file)
    asked, context = order(MessageType.TRAIN, config, note | {"round": 2})
    app(asked, context)
    assert not context.state
    second = read_state(file)
    assert (first.round, second.round) == (1, 2)
    assert read_state(file.with_name(f"{client}.previous.safetensors")).round == 1
