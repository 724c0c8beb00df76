"""The ClientApp: Flower messages in, a node's work, Flower messages out."""

import json
from dataclasses import replace
from logging import WARNING
from pathlib import Path
from typing import cast

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from client_app.device import Device, device
from client_app.node import Node, Problem, Result, problem, started_from
from client_app.record import record
from client_app.stores import ContextStore, DeviceStore, DiskStore, MemoryStore, Mirrored, Store
from data.federated import numbered
from data.prepare import size_warning
from strategies.core import wire
from strategies.core.errors import BadInput
from strategies.core.files import write_atomically
from strategies.settings import Settings, parse

# The stores of nodes that keep their clients' state in this process's memory, by run
# folder and node.
_memories: dict[tuple[str, int], Store] = {}

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell which clients live here, and what their data look like."""
    try:
        reply = Message(_introduce(_node(message, context), context), reply_to=message)
        return _recorded(reply, message, context, "query")
    except BadInput as error:  # for the server to pass on to the user as it is
        note = ConfigRecord({"refused": str(error)})
        return Message(wire.content({}, MetricRecord(), note), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train and evaluate the clients the message names."""
    note = _note(message)
    result = _node(message, context).train(
        cast(int, note["round"]),
        cast(list[str], note["clients"]),
        cast(list[float], note["weights"]),
        wire.unpack(message.content.array_records[wire.ARRAYS]),
        cast(bool, note["evaluate"]),
    )
    _leave_diagnostics(result, message, context)
    return _recorded(_reply(result, message), message, context, "train")


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the clients the message names."""
    note = _note(message)
    result = _node(message, context).evaluate(
        cast(int, note["round"]),
        cast(list[str], note["clients"]),
        wire.unpack(message.content.array_records[wire.ARRAYS]),
        _place(message, context, "predictors"),
        cast(int, note["adapt"]),
        _place(message, context, "outcomes"),
    )
    _leave_diagnostics(result, message, context)
    return _recorded(_reply(result, message), message, context, "evaluate")


def forget() -> None:
    """Drop what clients of finished runs kept in this process's memory."""
    _memories.clear()


def _node(message: Message, context: Context) -> Node:
    torch.set_num_threads(1)  # nodes share the machine; one core each
    settings = parse(message.content.config_records[wire.SETTINGS])
    own = device(context.node_config)
    if own is not None:  # where the server's data are is none of a device's business
        settings = replace(settings, data=replace(settings.data, path=own.data_path))
    loaded = problem(settings, None if own is None else own.clients)
    if wire.WARM in message.content.array_records:
        loaded = started_from(loaded, wire.unpack(message.content.array_records[wire.WARM]))
    hosted = _hosted(loaded, context) if own is None else own.clients
    store = _store(settings, message, context) if own is None else _own(settings, message, own)
    lr = cast(float, _note(message).get("lr", settings.run.lr))
    return Node(settings.with_run(lr=lr), loaded, hosted, store)


def _hosted(loaded: Problem, context: Context) -> tuple[str, ...]:
    """The clients of a simulated node: every n-th, so that nodes are alike."""
    place = int(context.node_config.get("partition-id", 0))
    nodes = int(context.node_config.get("num-partitions", 1))
    return tuple(sorted(loaded.data.clients)[place::nodes])


def _store(settings: Settings, message: Message, context: Context) -> Store:
    folder = cast(str, _note(message)["state-dir"])
    durable = DiskStore(Path(folder))
    if settings.run.store == "memory":
        return _memories.setdefault((folder, context.node_id), Mirrored(MemoryStore(), durable))
    if settings.run.store == "context":
        return Mirrored(ContextStore(context.state, folder), durable)
    return durable


def _own(settings: Settings, message: Message, own: Device) -> Store:
    """A device's store: in its own folder, whatever the server says; only the name is the run's."""
    states = own.states(cast(str, _note(message)["state-dir"]))
    return DeviceStore(states, own.runs, keep=settings.run.personal_from == "keep")


def _place(message: Message, context: Context, what: str) -> Path | None:
    """Where final models or outcomes go, if asked for: on a device, to its own folder."""
    folder = cast(str, _note(message).get(f"{what}-dir", ""))
    own = device(context.node_config)
    if not folder:
        return None
    return Path(folder) if own is None else own.predictors.with_name(what)


def _leave_diagnostics(result: Result, message: Message, context: Context) -> None:
    """Write a simulation's numbers about personal states into its folder.

    No reply carries them, and a device writes them nowhere: they would leave with the folder.
    """
    note = _note(message)
    folder = cast(str, note.get("diagnostics-dir", ""))
    if not folder or not result.diagnostics or device(context.node_config) is not None:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    numbers = {"round": note["round"], "clients": result.clients, **result.diagnostics}
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
    if node.settings.run.share_label_counts and data.classes:
        metrics["label_counts"] = [n for client in clients for n in data.label_counts(client)]
    arrays = {} if data.init is None else {"init": data.init}
    note = ConfigRecord({"clients": clients})
    if data.names != numbered(data.classes):
        note["class-names"] = list(data.names)
    if data.inputs:
        note["input-names"] = list(data.inputs)
    first = not context.node_config.get("partition-id", 0)  # a simulation's nodes load the same
    warning = size_warning(data.x, node.settings.data.scale) if first else ""
    if warning and device(context.node_config) is not None:  # what its data are like stays there
        log(WARNING, warning)
    elif warning:
        note["warning"] = warning
    return wire.content(arrays, MetricRecord(metrics), note)


def _reply(result: Result, message: Message) -> Message:
    metrics: dict[str, int | float | list[int] | list[float]] = {"weight": result.weight}
    metrics |= result.metrics
    metrics |= {f"seconds_{what}": spent for what, spent in result.seconds.items()}
    note = ConfigRecord(
        {
            "round": cast(int, _note(message)["round"]),
            "clients": result.clients,
            "failed": list(result.failures),
            "reasons": list(result.failures.values()),
            "diverged": result.diverged,
        }
    )
    return Message(wire.content(result.mean, MetricRecord(metrics), note), reply_to=message)


def _recorded(reply: Message, message: Message, context: Context, kind: str) -> Message:
    """A reply, which on a device leaves only once it is on record."""
    own, note = device(context.node_config), _note(message)
    if own is not None:
        record(own, cast(str, note["state-dir"]), kind, cast(int, note.get("round", 0)), reply)
    return reply


def _note(message: Message) -> ConfigRecord:
    return message.content.config_records[wire.NOTE]
