"""The ClientApp to :class:`bouquet.flower.PersonalizedStrategy`, with anybody's model and data."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from bouquet.augmentation import Augment
from bouquet.client_app.device import Device, device
from bouquet.client_app.main import answering, at_work, hosts, obey, own_store, placed
from bouquet.client_app.node import Node
from bouquet.client_app.orders import Order, read_order
from bouquet.client_app.stores import ContextStore
from bouquet.core.errors import BadInput
from bouquet.core.judging import Judge
from bouquet.core.measure import CLASSES, SEVERAL, VALUES
from bouquet.core.scheme import AnyScheme
from bouquet.data import DATASETS, DataConfig, FederatedData
from bouquet.data.federated import client_ids
from bouquet.data.memory import in_memory
from bouquet.flower import wire
from bouquet.imports import is_path, named_paths, offer
from bouquet.models import Maker, ModelConfig
from bouquet.objects import ModelLike, factory
from bouquet.problem import Problem, posed, problem
from bouquet.settings import Settings
from bouquet.stages import named_schemes
from bouquet.strategies.registry import SCHEMES

# What follows a message, and what Flower lets stand around it.
Follow = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Follow], Message]
# A client's examples: inputs, labels, and the same of those it is judged on.
Examples = tuple[Any, Any, Any, Any]
# By which argument of ours an app lets in what a key names.
LETS_IN = {"loss": "judges", "metric": "judges", "augment": "augments"}
DataLike = str | DataConfig | FederatedData | Mapping[str, Any] | Callable[[Context], Examples]


def client_app(
    model: ModelLike | ModelConfig,
    data: DataLike,
    *,
    classes: int = 0,
    targets: str = CLASSES,
    schemes: Sequence[type[AnyScheme]] = (),
    judges: Sequence[Judge] = (),
    augments: Sequence[Augment] = (),
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
    targets : str
        What is predicted of data in memory: ``classes``, ``values`` (regression; y of real
        numbers) or ``several`` labels (y of 0 and 1, a row an example).
    schemes : sequence
        Schemes from outside that a server may name.
    judges : sequence
        Losses and metrics from outside that a server may name.
    augments : sequence
        Augmentations from outside that a server may name.
    mods : sequence
        Flower's mods, applied to every message.
    """
    if targets not in (CLASSES, VALUES, SEVERAL):
        raise BadInput(f"targets must be 'classes', 'values' or 'several', not {targets!r}.")
    if callable(data) and not classes and targets == CLASSES:
        raise BadInput("classes must be given where data is a function, such as classes=10.")
    if isinstance(data, str):
        if data not in DATASETS and not is_path(data):
            raise BadInput(f"data must be one of {', '.join(DATASETS)}, not {data!r}.")
        data = DataConfig(name=data)
    config, make = _model(model)
    allowed = frozenset(map(offer, (*schemes, *judges, *augments)))
    parts = _Parts(config, make, data, classes, DataConfig(labels=targets), allowed)
    return answering(parts.prepared, ClientApp(mods=[_introduced, *mods]))


@dataclass(frozen=True)
class _Parts:
    """What an app brings of its own; see :func:`client_app`."""

    model: ModelConfig
    make: Maker | None
    data: DataConfig | FederatedData | Mapping[str, Any] | Callable[[Context], Examples]
    classes: int
    predicted: DataConfig
    allowed: frozenset[str]

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
        else:
            obey(own, order, message)
        torch.set_num_threads(1)  # nodes share the machine; one core each
        loaded = self._problem(settings, own, context)
        if callable(self.data):
            hosted: Collection[str] = tuple(loaded.data.clients)
        else:
            hosted = hosts(loaded, context) if own is None else own.clients
        store = (
            ContextStore(context.state, order.state_dir) if own is None else own_store(order, own)
        )
        return order, at_work(order, settings, loaded, hosted, store)

    def _problem(self, settings: Settings, own: Device | None, context: Context) -> Problem:
        seed, dtype = settings.run.seed, settings.dtype
        only = None if own is None else own.clients
        where = placed(settings, own, context)
        match self.data:
            case DataConfig():
                return problem(settings, only, self.make, where)
            case FederatedData() as data:
                pass
            case Mapping() as clients:
                data = in_memory(clients, self.classes, seed, dtype, self.predicted)
            case load:
                examples = {_client_id(context): load(context)}
                data = in_memory(examples, self.classes, seed, dtype, self.predicted)
        data = data if only is None else data.restricted(only)
        run = settings.run
        data = data.holding_out(run.validation, seed, run.validation_folds, run.validation_fold)
        return posed(settings, data, self.make, where)

    def _refuse_strangers(self, message: Message) -> None:
        """Refuse settings that name code which is not the app's, before any of it is loaded."""
        values: Mapping[str, object] = message.content.config_records.get(wire.SETTINGS, {})
        for name in named_schemes(values):
            if name not in SCHEMES and name not in self.allowed:
                raise BadInput(
                    f"scheme {name!r} is not one of this app's; client_app(schemes=[...]) lets it "
                    "in."
                )
        for key, name in named_paths(
            values
        ):  # whatever model and data it names, the app's are used
            if key in LETS_IN and name not in self.allowed:
                raise BadInput(
                    f"{key} {name!r} is not one of this app's; client_app({LETS_IN[key]}=[...]) "
                    "lets it in."
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
