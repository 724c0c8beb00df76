"""The ClientApp: Flower messages in, a node's work, Flower messages out."""

from pathlib import Path
from typing import cast

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_app.node import Node, Problem, Result, problem
from client_app.stores import ContextStore, DiskStore, MemoryStore, Mirrored, Store
from strategies.core import wire
from strategies.core.errors import BadInput
from strategies.settings import Settings, parse

# The stores of nodes that keep their clients' state in this process's memory.
_memories: dict[tuple[int, int], Store] = {}


def make_app(settings: Settings | None = None, store: str = "disk") -> ClientApp:
    """Make a ClientApp.

    Parameters
    ----------
    settings : Settings, optional
        Of the run; without them they are read from Flower's run config.
    store : str
        What ``store = "auto"`` means to whoever runs the app.
    """
    app = ClientApp()

    def node(message: Message, context: Context) -> Node:
        torch.set_num_threads(1)  # nodes share the machine; one core each
        known = settings or parse(context.run_config)
        if known.run.store == "auto":
            known = known.with_run(store=store)
        return _node(known, message, context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """Tell which clients live here, and what their data look like."""
        try:
            return Message(_introduce(node(message, context), context), reply_to=message)
        except BadInput as error:  # for the server to pass on to the user as it is
            note = ConfigRecord({"refused": str(error)})
            return Message(wire.content({}, MetricRecord(), note), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train and evaluate the clients the message names."""
        note = _note(message)
        result = node(message, context).train(
            cast(int, note["round"]),
            cast(list[str], note["clients"]),
            cast(list[float], note["weights"]),
            wire.unpack(message.content.array_records[wire.ARRAYS]),
            cast(bool, note["evaluate"]),
        )
        return _reply(result, message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        """Evaluate the clients the message names."""
        note = _note(message)
        folder = cast(str, note["predictors-dir"])
        result = node(message, context).evaluate(
            cast(int, note["round"]),
            cast(list[str], note["clients"]),
            wire.unpack(message.content.array_records[wire.ARRAYS]),
            Path(folder) if folder else None,
        )
        return _reply(result, message)

    return app


def forget(run_id: int) -> None:
    """Drop what the clients of a finished run kept in this process's memory."""
    for key in [key for key in _memories if key[0] == run_id]:
        del _memories[key]


def _node(settings: Settings, message: Message, context: Context) -> Node:
    loaded = problem(settings)
    return Node(settings, loaded, _hosted(loaded, context), _store(settings, message, context))


def _hosted(loaded: Problem, context: Context) -> tuple[str, ...]:
    """The clients of a simulated node: every n-th, so that nodes are alike."""
    place = int(context.node_config.get("partition-id", 0))
    nodes = int(context.node_config.get("num-partitions", 1))
    return tuple(sorted(loaded.data.clients)[place::nodes])


def _store(settings: Settings, message: Message, context: Context) -> Store:
    folder = _note(message)["state-dir"]
    durable = DiskStore(Path(cast(str, folder)))
    if settings.run.store == "memory":
        mirrored = Mirrored(MemoryStore(), durable)
        return _memories.setdefault((context.run_id, context.node_id), mirrored)
    if settings.run.store == "context":
        return Mirrored(ContextStore(context.state), durable)
    return durable


def _introduce(node: Node, context: Context) -> RecordDict:
    data, clients = node.problem.data, list(node.clients)
    metrics: dict[str, int | float | list[int] | list[float]] = {
        "train_examples": [len(data.clients[client].train) for client in clients],
        "test_examples": [len(data.clients[client].test) for client in clients],
        "input_shape": list(data.x.shape[1:]),
        "classes": data.classes,
        "nodes": int(context.node_config.get("num-partitions", 1)),
        "place": int(context.node_config.get("partition-id", 0)),
    }
    if node.settings.run.share_label_counts and data.classes:
        metrics["label_counts"] = [n for client in clients for n in data.label_counts(client)]
    arrays = {} if data.init is None else {"init": data.init}
    return wire.content(arrays, MetricRecord(metrics), ConfigRecord({"clients": clients}))


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
        }
    )
    return Message(wire.content(result.mean, MetricRecord(metrics), note), reply_to=message)


def _note(message: Message) -> ConfigRecord:
    return message.content.config_records[wire.NOTE]


app = make_app()
