"""Our schemes in anybody's Flower app: a Strategy for its ServerApp, and the ClientApp to it.

>>> from bouquet.flower import PersonalizedStrategy, client_app
>>> strategy = PersonalizedStrategy(APFL(alpha=0.3), local_steps=5)  # doctest: +SKIP
>>> strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=10)  # doctest: +SKIP
>>> app = client_app(model=Net, data=load, classes=10)  # doctest: +SKIP

What is personal stays on the nodes: in their Context, or on their disk where the node config has a
``state-dir``. A message says what to do and with which keys; model and data are the app's own.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import INFO
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from bouquet.api import ModelLike, SchemeLike, factory, flat, told_of
from bouquet.flower_private import HttpGrid, log
from client_app.device import Device, device
from client_app.main import answering, at_work, hosts, own_store
from client_app.node import Node, Problem, posed, problem
from client_app.orders import Order, read_order
from client_app.stores import ContextStore
from data import DATASETS, DataConfig, FederatedData
from data.federated import client_ids
from data.memory import in_memory
from models import Maker, ModelConfig, personal_names
from server_app.adapter import Report, SchemeStrategy
from server_app.divergence import divergence
from server_app.loop import check_deployable, full_evaluation
from server_app.roster import Roster
from server_app.runfolder import new_name
from strategies.core import wire
from strategies.core.errors import BadInput, RunFailed
from strategies.core.imports import offer
from strategies.core.scheme import AnyScheme
from strategies.core.task import Task
from strategies.core.trees import Tree
from strategies.registry import SCHEMES
from strategies.settings import DTYPES, Settings, parse
from strategies.stages import named_schemes

# What follows a message, and what Flower lets stand around it.
Follow = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Follow], Message]
# A client's examples: inputs, labels, and the same of those it is judged on.
Examples = tuple[Any, Any, Any, Any]
DataLike = str | DataConfig | FederatedData | Mapping[str, Any] | Callable[[Context], Examples]

# Keys of runs in our own loop: Flower's has other words for them, or no such thing.
_ELSEWHERE = {
    "rounds": "strategy.start(num_rounds=...)",
    "round-timeout": "strategy.start(timeout=...)",
    "dtype": "the type of initial_arrays",
    **dict.fromkeys(("store", "state-dir"), "state-dir in the node config"),
    "data": "client_app",
    **dict.fromkeys(
        ("nodes", "out", "resume", "pipeline", "stage-keys", "save-outcomes", "join"),
        "bouquet simulate",
    ),
}
# Rounds until somebody says how many: as good as no end.
_UNTOLD = 10**9


class PersonalizedStrategy(Strategy):
    """A scheme as a strategy of any ServerApp.

    The nodes' app must be :func:`client_app`. ``Result.arrays`` of :meth:`start` is the shared
    model; evaluations are means over the clients of ``shared_loss``, ``personal_loss`` and the
    accuracies.

    Parameters
    ----------
    scheme : Scheme, class or str
        Such as ``APFL(alpha=0.3)``, or a name of ``bouquet schemes``.
    **keys
        Keys of the run with their usual defaults, ``_`` for ``-``, groups as dicts:
        ``local_steps=5``, ``lr=0.05``, ``clients_per_round=10``, ``seed=1``, ``eval_every=1``,
        ``min_clients=3``, ``personal={"split": "head.*"}``.
    """

    def __init__(self, scheme: SchemeLike, **keys: Any) -> None:
        told = flat(keys)
        for name in told:
            where = _ELSEWHERE.get(name.partition(".")[0])
            if where:
                raise BadInput(f"{name} is no key of a strategy; see {where}.")
        settings = parse(told_of(scheme) | told | {"rounds": _UNTOLD})
        check_deployable(settings)  # a node may be a device
        self.settings = self._settings = settings.in_stage(settings.stages[0])
        self._strategy: SchemeStrategy | None = None
        self._begin(_UNTOLD)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop, from the beginning; see there for the parameters."""
        if train_config or evaluate_config:
            raise BadInput(
                "train_config and evaluate_config must be empty: what clients do is told by keys "
                "of PersonalizedStrategy, such as lr=0.05."
            )
        self._begin(num_rounds)
        with _one_thread():
            result = super().start(
                grid, initial_arrays, num_rounds, timeout, evaluate_fn=evaluate_fn
            )
        if not any(event["clients"] for event in self._events):
            why = next(iter(self.report.failures.values()), "nobody was there")
            raise RunFailed(f"No client finished a single round: {why}")
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a node; in the first round, after every node has introduced itself."""
        if self._strategy is None:
            self._settings = _typed(self._settings, initial := wire.unpack(arrays))
        deployed = isinstance(grid, HttpGrid)
        self._roster.update(grid, self._settings, self._name, threading.Event(), deployed)
        if self._strategy is None:
            task = _task(self._settings, self._roster, initial)
            self._strategy = SchemeStrategy(
                self._settings, task, self._roster, self._name, "predictors", warm=True
            )
        return self._strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The shared model after a round, and no numbers: training gives none."""
        arrays, metrics = self._begun.aggregate_train(server_round, replies)
        event = {"round": server_round, "clients": self.report.clients, "metrics": {}}
        self._events.append(event)
        self._stop_if_diverged(self.report, None)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message a node, in the rounds that ``eval_every`` says and the last."""
        self._evaluates = full_evaluation(self._settings, server_round, self._begun.stage)
        if not self._evaluates:
            return []
        return self._begun.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Means over the clients; nothing in a round without an evaluation."""
        if not self._evaluates:
            return None
        metrics = self._begun.aggregate_evaluate(server_round, replies)
        self._events[-1]["metrics"] = dict(metrics or {})
        self._stop_if_diverged(Report(), self.report)
        return metrics

    def summary(self) -> None:
        """Log what is about to run."""
        log(INFO, "%s", self.settings.scheme.title)

    @property
    def report(self) -> Report:
        """What came of the last messages, client by client."""
        return self._begun.report

    def _begin(self, rounds: int) -> None:
        """Forget what an earlier run left: nodes, server, and the name of its personal state."""
        self._settings = parse(self.settings.flat() | {"rounds": rounds})
        self._roster, self._name = Roster(), new_name()
        self._strategy = None
        self._events: list[dict[str, Any]] = []
        self._evaluates = False

    @property
    def _begun(self) -> SchemeStrategy:
        if self._strategy is None:
            raise RunFailed("The first call to a strategy is configure_train.")
        return self._strategy

    def _stop_if_diverged(self, trained: Report, evaluated: Report | None) -> None:
        if self._settings.run.on_divergence == "stop":
            classes = self._begun.task.classes
            seen = divergence(self._settings, classes, self._events, trained, evaluated)
            if seen:
                raise RunFailed(seen)


def client_app(
    model: ModelLike | ModelConfig,
    data: DataLike,
    *,
    classes: int = 0,
    schemes: Sequence[type[AnyScheme]] = (),
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """The ClientApp for :class:`PersonalizedStrategy`.

    Whatever a message says, it trains this model on these data, with one of our schemes or of
    ``schemes``, and writes nowhere but into the node's Context and its own ``state-dir``.

    Parameters
    ----------
    model : class, callable, Module, str or ModelConfig
        What makes the model: called with nothing, or with an example's shape and the number of
        classes. Or the name of one of ours, or its keys.
    data : callable, mapping, FederatedData, str or DataConfig
        A function of a node's Context that gives its client's (x, y, x_test, y_test); or
        everybody's data, for simulations: by client id, of which a node hosts its share by
        ``partition-id``. Or the name of one of our data sets, or its keys.
    classes : int
        How many labels there are. A function must say, for a node sees its own labels only.
    schemes : sequence
        Schemes from outside that a server may name.
    mods : sequence
        Flower's mods, applied to every message.
    """
    if callable(data) and not classes:
        raise BadInput("classes must be given where data is a function, such as classes=10.")
    if isinstance(data, str):
        if data not in DATASETS:
            raise BadInput(f"data must be one of {', '.join(DATASETS)}, not {data!r}.")
        data = DataConfig(name=data)
    config, make = _model(model)
    parts = _Parts(config, make, data, classes, frozenset(offer(one) for one in schemes))
    return answering(parts.prepared, ClientApp(mods=[_introduced, *mods]))


@dataclass(frozen=True)
class _Parts:
    """What an app brings of its own; see :func:`client_app`."""

    model: ModelConfig
    make: Maker | None
    data: DataConfig | FederatedData | Mapping[str, Any] | Callable[[Context], Examples]
    classes: int
    schemes: frozenset[str]

    def prepared(self, message: Message, context: Context) -> tuple[Order, Node]:
        """What is asked of this node, and the node with the app's model and data."""
        own = device(context.node_config)
        self._refuse_strangers(message)
        order = read_order(message)
        data = self.data if isinstance(self.data, DataConfig) else DataConfig()
        path = data.path if own is None else own.data_path or data.path
        settings = replace(order.settings, model=self.model, data=replace(data, path=path))
        if own is None:  # a server's paths are no places to write to
            order = replace(order, folders=dict.fromkeys(order.folders, ""))
        torch.set_num_threads(1)  # nodes share the machine; one core each
        loaded = self._problem(settings, own, context)
        if callable(self.data):
            hosted = tuple(loaded.data.clients)
        else:
            hosted = hosts(loaded, context) if own is None else own.clients
        store = (
            ContextStore(context.state, order.state_dir) if own is None else own_store(order, own)
        )
        return order, at_work(order, settings, loaded, hosted, store)

    def _problem(self, settings: Settings, own: Device | None, context: Context) -> Problem:
        seed, dtype = settings.run.seed, settings.dtype
        only = None if own is None else own.clients
        match self.data:
            case DataConfig():
                return problem(settings, only, self.make)
            case FederatedData() as data:
                pass
            case Mapping() as clients:
                data = in_memory(clients, self.classes, seed, dtype)
            case load:
                examples = {_client_id(context): load(context)}
                data = in_memory(examples, self.classes, seed, dtype)
        data = data if only is None else data.restricted(only)
        return posed(settings, data.holding_out(settings.run.validation, seed), self.make)

    def _refuse_strangers(self, message: Message) -> None:
        """Refuse settings that name code which is not the app's, before any of it is loaded."""
        values: Mapping[str, object] = message.content.config_records.get(wire.SETTINGS, {})
        for name in named_schemes(values):
            if name not in SCHEMES and name not in self.schemes:
                raise BadInput(
                    f"scheme {name!r} is not one of this app's; client_app(schemes=[...]) lets it "
                    "in."
                )
        if values.get("pipeline") or values.get("stage-keys"):
            raise BadInput("pipeline must be empty in a Flower app.")


def _introduced(message: Message, context: Context, follow: Follow) -> Message:
    """A mod that gives a node with a place for personal state a name, if it has none."""
    config = context.node_config
    if "state-dir" in config and "client-id" not in config:
        named = {**config, "client-id": _client_id(context)}
        context = Context(context.run_id, context.node_id, named, context.state, context.run_config)
    return follow(message, context)


def _client_id(context: Context) -> str:
    """The id of a node's one client: what its owner calls it, its partition's, or the node's."""
    config = context.node_config
    if "client-id" in config:
        return str(config["client-id"])
    if "partition-id" not in config:
        return str(context.node_id)
    place = int(config["partition-id"])
    return client_ids(max(int(config.get("num-partitions", 1)), place + 1))[place]


def _model(model: ModelLike | ModelConfig) -> tuple[ModelConfig, Maker | None]:
    """A model's keys and, where it is no name of ours, what makes it."""
    if isinstance(model, (str, ModelConfig)):
        return ModelConfig(name=model) if isinstance(model, str) else model, None
    kind = type(model) if isinstance(model, nn.Module) else model
    name = f"{kind.__module__}:{getattr(kind, '__qualname__', 'model')}"
    if isinstance(model, nn.Module):
        return ModelConfig(name=name), factory(model)
    try:
        inspect.signature(model).bind()
    except TypeError:
        return ModelConfig(name=name), model
    return ModelConfig(name=name), lambda shape, classes: model()


def _typed(settings: Settings, initial: Tree) -> Settings:
    """Settings with the type that the initial weights have."""
    found = {value.dtype for value in initial.values()}
    for name, dtype in DTYPES.items():
        if found == {dtype}:
            return settings.with_run(dtype=name)
    listed = ", ".join(sorted(str(one).removeprefix("torch.") for one in found)) or "nothing"
    raise BadInput(f"initial_arrays must all be float32, or all float64, not {listed}.")


def _task(settings: Settings, roster: Roster, initial: Tree) -> Task:
    """The task as the server knows it: weights without a model."""
    assert roster.facts is not None  # a roster that was updated has met a node
    personal = personal_names(list(initial), settings.split)
    return Task(nn.Module(), initial, roster.facts.classes, personal, settings.run.weight_decay)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on the number of threads, and engines must agree to the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
