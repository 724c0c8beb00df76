"""The ClientApp: Flower messages in, a node's work, Flower messages out."""

import functools
import json
from collections.abc import Callable, Collection
from dataclasses import replace
from logging import WARNING
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bouquet.client_app.audit import record_reply
from bouquet.client_app.device import Device, device
from bouquet.client_app.node import Node, Result
from bouquet.client_app.orders import Order, read_order
from bouquet.client_app.stores import (
    ContextStore,
    DeviceStore,
    DiskStore,
    MemoryStore,
    Mirrored,
    Store,
)
from bouquet.core import cohort
from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES, VALUES
from bouquet.core.placement import find
from bouquet.data.federated import numbered
from bouquet.flower import wire
from bouquet.flower.private import log
from bouquet.problem import Problem, problem, started_from
from bouquet.settings import Settings
from bouquet.storage.files import sweep, write_atomically

# The stores of nodes that keep their clients' state in this process's memory, by run folder.
_memories: dict[str, Store] = {}

# Reads what a message asks for, and finds the node that does it.
Prepare = Callable[[Message, Context], tuple[Order, Node]]


def answering(prepare: Prepare, app: ClientApp) -> ClientApp:
    """Let an app answer the server's messages, with the model and the data ``prepare`` finds."""
    app.query()(functools.partial(query, prepare))
    app.train()(functools.partial(train, prepare))
    app.evaluate()(functools.partial(evaluate, prepare))
    return app


def query(prepare: Prepare, message: Message, context: Context) -> Message:
    """Tell which clients live here, and what their data look like."""
    try:
        order, node = prepare(message, context)
        reply = Message(_introduce(node, context), reply_to=message)
        return _recorded(reply, order, context, "query")
    except BadInput as error:  # for the server to pass on to the user as it is
        note = ConfigRecord({"refused": str(error)})
        return Message(wire.content({}, MetricRecord(), note), reply_to=message)


def train(prepare: Prepare, message: Message, context: Context) -> Message:
    """Train the clients the message names."""
    order, node = prepare(message, context)
    result = node.train(order.round, order.clients, order.weights, order.arrays)
    return _recorded(_reply(result, order, message), order, context, "train")


def evaluate(prepare: Prepare, message: Message, context: Context) -> Message:
    """Evaluate the clients the message names."""
    order, node = prepare(message, context)
    result = node.evaluate(
        order.round,
        order.clients,
        order.arrays,
        _place(order, context, "predictors"),
        order.adapt,
        _place(order, context, "outcomes"),
    )
    _leave_diagnostics(result, order, context)
    return _recorded(_reply(result, order, message), order, context, "evaluate")


def forget() -> None:
    """Drop what clients of finished runs kept in this process's memory."""
    _memories.clear()
    cohort.forget()


def prepared(message: Message, context: Context) -> tuple[Order, Node]:
    """What is asked of one of our nodes, whose model and data the run's settings name."""
    own = device(context.node_config)
    order = read_order(message, own)
    settings = order.settings
    if own is not None:  # where the server's files are is none of a device's business
        # It reads its own file of weights, and only where a run starts from such a file.
        weights = own.weights if settings.model.weights_sha256 else ""
        settings = replace(
            settings,
            data=replace(settings.data, path=own.data_path),
            model=replace(settings.model, weights=weights),
        )
    torch.set_num_threads(1)  # nodes share the machine; one core each
    where = placed(settings, own, context)
    loaded = problem(settings, None if own is None else own.clients, device=where)
    if own is not None:
        return order, at_work(order, settings, loaded, own.clients, own_store(order, own))
    # A simulated node introduces its share of the clients, and can train any of them as long as
    # their states do not live in its own Context.
    anywhere = order.round and settings.run.store != "context"
    hosted = loaded.data.clients.keys() if anywhere else hosts(loaded, context)
    store = _store(order, context)
    return order, at_work(order, settings, loaded, hosted, store)


def placed(settings: Settings, own: Device | None, context: Context) -> torch.device:
    """Where a node computes; several of one machine share out its GPUs."""
    asked = settings.run.device if own is None else own.chosen(settings.run.device)
    return find(asked, int(context.node_config.get("partition-id", 0)))


def at_work(
    order: Order, settings: Settings, loaded: Problem, hosted: Collection[str], store: Store
) -> Node:
    """A node that is to do what a message asks, from the weights it says everyone starts from."""
    if order.warm:
        loaded = started_from(loaded, order.warm)
    if order.lr != settings.run.lr:  # other settings, from which the scheme is put together anew
        settings = settings.with_run(lr=order.lr)
    return Node(settings, loaded, hosted, store, order.first)


def hosts(loaded: Problem, context: Context) -> Collection[str]:
    """The clients of a simulated node."""
    place = int(context.node_config.get("partition-id", 0))
    nodes = int(context.node_config.get("num-partitions", 1))
    return loaded.data.dealt(place, nodes)


def _store(order: Order, context: Context) -> Store:
    folder, kind = order.state_dir, order.settings.run.store
    durable = DiskStore(Path(folder))
    if kind == "memory":
        return _memories.setdefault(folder, Mirrored(MemoryStore(), durable))
    if kind == "context":
        return Mirrored(ContextStore(context.state, folder), durable)
    return durable


def own_store(order: Order, own: Device) -> Store:
    """A device's store: in its own folder, whatever the server says; only the name is the run's."""
    states = own.states(order.state_dir)
    sweep(states, own.predictors, own.predictors.with_name("outcomes"))
    keep = order.settings.run.personal_from == "keep"
    return DeviceStore(states, own.runs, keep, recover=own.state_recovery == "previous")


def _place(order: Order, context: Context, what: str) -> Path | None:
    """Where final models or outcomes go, if asked for: on a device, to its own folder."""
    folder, own = order.folders[what], device(context.node_config)
    if not folder:
        return None
    return Path(folder) if own is None else own.predictors.with_name(what)


def _leave_diagnostics(result: Result, order: Order, context: Context) -> None:
    """Write a simulation's numbers about personal states into its folder.

    No reply carries them, and a device writes them nowhere: they would leave with the folder.
    """
    folder = order.folders["diagnostics"]
    if not folder or not result.diagnostics or device(context.node_config) is not None:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    numbers = {"round": order.round, "clients": result.clients, **result.diagnostics}
    name = f"{context.node_config.get('partition-id', 0)}.json"
    write_atomically(Path(folder) / name, json.dumps(numbers).encode())


def _introduce(node: Node, context: Context) -> RecordDict:
    data, clients = node.problem.data, list(node.clients)
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "train_examples": [len(data.clients[client].train) for client in clients],
        "test_examples": [len(data.clients[client].test) for client in clients],
        "input_shape": list(data.x.shape[1:]),
        "classes": data.classes,
        "nodes": int(context.node_config.get("num-partitions", 1)),
    }
    if node.settings.run.share_label_counts and data.classes and data.targets != VALUES:
        metrics["label_counts"] = [n for client in clients for n in data.label_counts(client)]
    arrays = {} if data.init is None else {"init": data.init}
    note = ConfigRecord({"clients": clients})
    if data.targets != CLASSES:
        note["targets"] = data.targets
    if data.names != numbered(data.classes):
        note["class-names"] = list(data.names)
    if data.inputs:
        note["input-names"] = list(data.inputs)
    if node.problem.task.buffers:
        note["buffers"] = list(node.problem.task.buffers)
    first = not context.node_config.get("partition-id", 0)  # a simulation's nodes load the same
    warning = data.size_warning(node.settings.data.scale) if first else ""
    if warning and device(context.node_config) is not None:  # what its data are like stays there
        log(WARNING, warning)
    elif warning:
        note["warning"] = warning
    return wire.content(arrays, MetricRecord(metrics), note)


def _reply(result: Result, order: Order, message: Message) -> Message:
    metrics: dict[str, int | float | list[int] | list[float]] = {"weight": result.weight}
    metrics |= result.metrics
    metrics |= {f"seconds_{what}": spent for what, spent in result.seconds.items()}
    note = ConfigRecord(
        {
            "round": order.round,
            "clients": result.clients,
            "failed": list(result.failures),
            "reasons": list(result.failures.values()),
            "diverged": result.diverged,
        }
    )
    return Message(wire.content(result.mean, MetricRecord(metrics), note), reply_to=message)


def _recorded(reply: Message, order: Order, context: Context, kind: str) -> Message:
    """A reply, which on a device leaves only once it is on record."""
    own = device(context.node_config)
    if own is not None:
        record_reply(own, order.state_dir, kind, order.round, reply)
    return reply


app = answering(prepared, ClientApp())
