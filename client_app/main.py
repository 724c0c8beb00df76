"""The ClientApp: Flower messages in, a node's work, Flower messages out."""

import functools
import json
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from logging import WARNING
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bouquet.client_app.audit import record_refusal, record_reply
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
from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.measure import CLASSES, VALUES
from bouquet.core.placement import find
from bouquet.data.federated import numbered
from bouquet.flower import wire
from bouquet.flower.private import log
from bouquet.imports import unchanging
from bouquet.problem import Problem, problem, started_from
from bouquet.settings import Settings
from bouquet.storage.atomic import sweep, write_atomically
from bouquet.storage.marker import NotShared, check_shared

# The stores of nodes that keep their clients' state in this process's memory, by run folder.
_memories: dict[str, Store] = {}

# Reads what a message asks for, and finds the node that does it.
Prepare = Callable[[Message, Context], tuple[Order, Node]]


def answering(prepare: Prepare, app: ClientApp) -> ClientApp:
    """Let an app answer the server's messages, with the model and the data ``prepare`` finds."""
    for kind, add, follow in (
        ("query", app.query, query),
        ("train", app.train, train),
        ("evaluate", app.evaluate, evaluate),
    ):
        quietly = functools.partial(_discreetly, follow, prepare)
        add()(functools.partial(_accounted_for, kind, quietly))
    return app


def _accounted_for(
    kind: str, handle: Callable[[Message, Context], Message], message: Message, context: Context
) -> Message:
    """Have a device put on record also why it did not follow a message: Flower sends the reason."""
    try:
        reply = handle(message, context)
    except Exception as error:
        _record_refusal(context, kind, str(error))
        raise
    note = reply.content.config_records[wire.NOTE]
    if "refused" in note:
        _record_refusal(context, kind, str(note["refused"]))
    return reply


def _record_refusal(context: Context, kind: str, sentence: str) -> None:
    with suppress(BadInput):  # a node that does not know who it is has no place for a record
        if (own := device(context.node_config)) is not None:
            record_refusal(own, kind, sentence)


def _discreetly(
    follow: Callable[[Prepare, Message, Context], Message],
    prepare: Prepare,
    message: Message,
    context: Context,
) -> Message:
    """Follow a message; what goes wrong on a device is told without saying where its files are.

    Flower sends an exception's words to the server, and writes all of it to the device's log.
    """
    own = device(context.node_config)
    if own is None:
        with unchanging(context.run_id):
            return follow(prepare, message, context)
    try:
        return follow(prepare, message, context)
    except Exception as error:
        if isinstance(error, BadInput):
            raise BadInput(own.discreet(str(error))) from error
        raise RunFailed(own.discreet(f"{type(error).__name__}: {error}")) from error


def query(prepare: Prepare, message: Message, context: Context) -> Message:
    """Tell which clients live here, and what their data look like."""
    try:
        order, node = prepare(message, context)
        reply = Message(_introduce(node, context), reply_to=message)
        return _recorded(reply, order, context, "query")
    except BadInput as error:
        return _refusal(error, message, context)


def train(prepare: Prepare, message: Message, context: Context) -> Message:
    """Train the clients the message names."""
    try:
        order, node = prepare(message, context)
    except NotShared as error:
        return _refusal(error, message, context)
    result = node.train(order.round, order.clients, order.weights, order.arrays)
    return _recorded(_reply(result, order, message, context), order, context, "train")


def evaluate(prepare: Prepare, message: Message, context: Context) -> Message:
    """Evaluate the clients the message names."""
    try:
        order, node = prepare(message, context)
    except NotShared as error:
        return _refusal(error, message, context)
    result = node.evaluate(
        order.round,
        order.clients,
        order.arrays,
        _place(order, context, "predictors"),
        order.adapt,
        _place(order, context, "outcomes"),
    )
    _leave_diagnostics(result, order, context)
    own = device(context.node_config)
    if own is not None and not own.policy.metrics:
        result = _untold(result)
    return _recorded(_reply(result, order, message, context), order, context, "evaluate")


def _untold(result: Result) -> Result:
    """An evaluation of which nothing leaves the device but that it took place."""
    kept = dict.fromkeys(result.clients, "its owner keeps its metrics on the device")
    return Result(failures=result.failures | kept, seconds=result.seconds)


def forget() -> None:
    """Drop what clients of finished runs kept in this process's memory."""
    _memories.clear()
    cohort.forget()


def prepared(message: Message, context: Context) -> tuple[Order, Node]:
    """What is asked of one of our nodes, whose model and data the run's settings name."""
    own = device(context.node_config)
    order = read_order(message, own)
    settings = order.settings
    if own is None:  # each time: a cluster's worker may be of any machine, for any message
        check_shared(order.markers)
    else:  # where the server's files are is none of a device's business
        # It reads its own file of weights, and only where a run starts from such a file.
        weights = own.weights if settings.model.weights_sha256 else ""
        settings = replace(
            settings,
            data=replace(settings.data, path=own.data_path),
            model=replace(settings.model, weights=weights),
        )
        own.refuse_model(settings.model.name)
        obey(own, order, message)
    torch.set_num_threads(1)  # nodes share the machine; one core each
    where = placed(settings, own, context)
    most = 0 if own is None else own.policy.parameters
    loaded = problem(settings, None if own is None else own.clients, device=where, most=most)
    if own is not None:
        return order, at_work(order, settings, loaded, own.clients, own_store(order, own))
    # A simulated node introduces its share of the clients, and can train any of them as long as
    # their states do not live in its own Context.
    anywhere = order.round and settings.run.store != "context"
    hosted = loaded.data.clients.keys() if anywhere else hosts(loaded, context)
    store = _store(order, context)
    return order, at_work(order, settings, loaded, hosted, store)


def obey(own: Device, order: Order, message: Message) -> None:
    """Refuse what a device's owner does not let it do now."""
    if order.settings.run.share_label_counts and not own.policy.label_counts:
        raise BadInput(
            f"share-label-counts must be false for client {', '.join(own.clients)}: the policy of "
            "its device lets no label counts leave (label-counts)."
        )
    trains = message.metadata.message_type == MessageType.TRAIN
    own.refuse_work(f"{order.state_dir} {order.round}" if trains else "")


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
    own.keep_private(order.state_dir)
    states = own.states(order.state_dir)
    sweep(states, own.predictors, own.outcomes)
    keep = order.settings.run.personal_from == "keep"
    return DeviceStore(states, own.runs, keep, recover=own.state_recovery == "previous")


def _place(order: Order, context: Context, what: str) -> Path | None:
    """Where final models or outcomes go, if asked for: on a device, to its own folder."""
    folder, own = order.folders[what], device(context.node_config)
    if not folder:
        return None
    return Path(folder) if own is None else own.folder / what


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
    own = device(context.node_config)
    told = own is None or own.policy.example_counts
    held = [data.clients[client] for client in clients]
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "train_examples": [len(one.train) if told else 1 for one in held],
        "test_examples": [len(one.test) if told else 1 for one in held],
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
    if warning and own is not None:  # what its data are like stays there
        log(WARNING, warning)
    elif warning:
        note["warning"] = warning
    return wire.content(arrays, MetricRecord(metrics), note)


def _reply(result: Result, order: Order, message: Message, context: Context) -> Message:
    own, reasons = device(context.node_config), list(result.failures.values())
    metrics: dict[str, int | float | list[int] | list[float]] = {"weight": result.weight}
    metrics |= result.metrics
    metrics |= {f"seconds_{what}": spent for what, spent in result.seconds.items()}
    note = ConfigRecord(
        {
            "round": order.round,
            "clients": result.clients,
            "failed": list(result.failures),
            "reasons": reasons if own is None else list(map(own.discreet, reasons)),
            "diverged": result.diverged,
        }
    )
    return Message(wire.content(result.mean, MetricRecord(metrics), note), reply_to=message)


def _refusal(error: BadInput, message: Message, context: Context) -> Message:
    """A sentence for the server to pass on to the user; a device names no folder of its own."""
    own = device(context.node_config)
    note = ConfigRecord({"refused": str(error) if own is None else own.discreet(str(error))})
    return Message(wire.content({}, MetricRecord(), note), reply_to=message)


def _recorded(reply: Message, order: Order, context: Context, kind: str) -> Message:
    """A reply, which on a device leaves only once it is on record."""
    own = device(context.node_config)
    if own is not None:
        scheme = order.settings.scheme
        record_reply(own, order.state_dir, scheme, kind, order.round, reply)
    return reply


app = answering(prepared, ClientApp())
