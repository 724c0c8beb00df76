"""The run loop: rounds of training, evaluation, the log, checkpoints."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from client_app.node import make_task
from client_app.stores import DiskStore
from server_app.adapter import Report, SchemeStrategy
from server_app.roster import Client, Roster, exchange
from server_app.runfolder import RunFolder
from strategies.core.errors import BadInput, RunFailed
from strategies.core.files import BadFile
from strategies.core.state import Identity
from strategies.core.task import Task
from strategies.core.trees import fingerprint, flatten, sha256, unflatten
from strategies.settings import Settings

Event = dict[str, Any]
MEASURES = ("shared_accuracy", "shared_loss", "personal_accuracy", "personal_loss")


def run(
    grid: Grid,
    settings: Settings,
    folder: RunFolder,
    *,
    engine: str,
    resume: bool = False,
    observe: Callable[[Event], None] = lambda event: None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Train, and leave a run folder behind.

    Parameters
    ----------
    grid : Grid
        Flower's way to the nodes.
    settings : Settings
        What to do.
    folder : RunFolder
        Where to write.
    engine : str
        Its name, for the summary.
    resume : bool
        Whether to go on from the folder's checkpoint.
    observe : callable
        Told of every round as it ends.
    stop : Event
        Set by whoever wants the run to end at once.

    Returns
    -------
    dict
        The summary, as written to ``summary.json``.
    """
    stop = stop or threading.Event()
    told = _told(settings, engine)
    torch.set_num_threads(1)  # sums depend on it, and engines must agree to the last bit
    states = Path(settings.run.state_dir) if settings.run.state_dir else folder.states
    roster = Roster()
    roster.update(grid, told, str(states.absolute()), stop)
    task = _task(settings, roster)
    _check_sample(settings, roster)
    done = 0
    server: Any = None
    events: list[Event] = []
    if resume:
        done, tree = folder.read_checkpoint(settings.run.scheme)
        server = unflatten(settings.scheme.server, tree)
        events = folder.read_events(done)
    elif states.exists() and (not states.is_dir() or any(states.iterdir())):
        raise BadInput(f"state-dir: {states} is no empty folder; choose one, or a new one.")
    folder.write_config(settings)
    folder.rewrite_events(events)
    strategy = SchemeStrategy(
        told, task, roster, str(states.absolute()), str(folder.predictors.absolute()), server
    )
    if not resume:
        folder.write_checkpoint(0, settings.run.scheme, flatten(strategy.server))
    scores: dict[str, dict[str, float]] = {}
    for round_ in range(done + 1, settings.run.rounds + 1):
        started = time.perf_counter()
        roster.update(grid, told, strategy.state_dir, stop)
        trained = _train(strategy, grid, round_, stop)
        trained.seconds["round"] = time.perf_counter() - started  # without full evaluation
        event = _event(settings, roster, round_, trained)
        if _full_evaluation(settings, round_):
            evaluated = _evaluate(strategy, grid, round_, stop)
            scores = evaluated.scores
            _add(event, roster, evaluated)
        event["seconds"] = time.perf_counter() - started
        folder.append_event(event)
        folder.write_checkpoint(round_, settings.run.scheme, flatten(strategy.server))
        events.append(event)
        observe(event)
    if not scores:  # resumed after the last round
        scores = _evaluate(strategy, grid, settings.run.rounds, stop).scores
    if not scores:
        raise RunFailed("no client could be evaluated; events.jsonl says why.")
    if not any(event["clients"] for event in events):
        raise RunFailed("no client finished a single round; events.jsonl says why.")
    rows = _rows(strategy, scores, states)
    folder.write_clients(rows)
    summary = _summary(strategy, engine, events, rows)
    folder.write_summary(summary)
    return summary


def _told(settings: Settings, engine: str) -> Settings:
    """What nodes are told: settings with the store the engine chooses where the user did not."""
    if settings.run.store != "auto":
        return settings
    return settings.with_run(store="memory" if engine == "inline" else "disk")


def _task(settings: Settings, roster: Roster) -> Task:
    facts = roster.facts
    assert facts is not None  # a roster that was updated has met a node
    return make_task(settings, facts.input_shape, facts.classes, facts.init)


def _check_sample(settings: Settings, roster: Roster) -> None:
    count = settings.run.clients_per_round
    if count > len(roster.clients):
        raise BadInput(
            f"clients-per-round must be at most {len(roster.clients)}, the number of clients, "
            f"not {count}."
        )


def _train(strategy: SchemeStrategy, grid: Grid, round_: int, stop: threading.Event) -> Report:
    messages = strategy.configure_train(round_, ArrayRecord(), ConfigRecord(), grid)
    replies = _exchange(strategy, grid, messages, stop)
    started = time.perf_counter()
    strategy.take_in(round_, replies)
    strategy.report.seconds["aggregation"] = time.perf_counter() - started
    return strategy.report


def _evaluate(strategy: SchemeStrategy, grid: Grid, round_: int, stop: threading.Event) -> Report:
    messages = strategy.configure_evaluate(round_, ArrayRecord(), ConfigRecord(), grid)
    strategy.aggregate_evaluate(round_, _exchange(strategy, grid, messages, stop))
    return strategy.report


def _exchange(
    strategy: SchemeStrategy, grid: Grid, messages: Sequence[Message], stop: threading.Event
) -> list[Message]:
    return exchange(grid, messages, strategy.settings.run.round_timeout, stop)


def _full_evaluation(settings: Settings, round_: int) -> bool:
    every = settings.run.eval_every
    return round_ == settings.run.rounds or (every > 0 and round_ % every == 0)


def _event(settings: Settings, roster: Roster, round_: int, report: Report) -> Event:
    return {
        "version": 1,
        "round": round_,
        "stage": settings.run.scheme,
        "seconds": 0.0,
        "timing": report.seconds,
        "clients": report.clients,
        "failures": [{"client": c, "reason": why} for c, why in report.failures.items()],
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "evaluated": len(report.scores),
        "metrics": _means(roster, report.scores),
    }


def _add(event: Event, roster: Roster, report: Report) -> None:
    """Add a full evaluation to a round's event: its numbers replace the sampled clients'."""
    event["failures"] += [{"client": c, "reason": why} for c, why in report.failures.items()]
    event["bytes_up"] += report.bytes_up
    event["bytes_down"] += report.bytes_down
    event["evaluated"] = len(report.scores)
    event["metrics"] = _means(roster, report.scores)


def _means(roster: Roster, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    means: dict[str, float] = {}
    for name in MEASURES:
        found = _spread([(roster.clients[c], s[name]) for c, s in scores.items() if name in s])
        if found:
            means |= {name: found["mean"], f"{name}_p10": found["p10"], f"{name}_p90": found["p90"]}
    return means


def _spread(values: Sequence[tuple[Client, float]]) -> dict[str, float]:
    """How a measure is spread over clients; ``weighted`` is by their test examples."""
    if not values:
        return {}
    numbers = np.array([value for _, value in values])
    sizes = np.array([client.test_examples for client, _ in values])
    return {
        "mean": float(numbers.mean()),
        "weighted": float(np.average(numbers, weights=sizes)),
        "std": float(numbers.std()),
        "p10": float(np.percentile(numbers, 10)),
        "p90": float(np.percentile(numbers, 90)),
        "min": float(numbers.min()),
        "max": float(numbers.max()),
    }


def _rows(
    strategy: SchemeStrategy, scores: Mapping[str, Mapping[str, float]], states: Path
) -> list[dict[str, Any]]:
    """The table of clients."""
    rows = []
    for client in sorted(strategy.roster.clients.values(), key=lambda one: one.id):
        measured = scores.get(client.id, {})
        rows.append(
            {
                "client": client.id,
                "node": client.place,
                "train_examples": client.train_examples,
                "test_examples": client.test_examples,
                **{name: measured[name] for name in MEASURES if name in measured},
                **_diagnostics(strategy, client.id, states),
            }
        )
    return rows


def _diagnostics(strategy: SchemeStrategy, client: str, states: Path) -> dict[str, float]:
    """The scheme's own numbers about a client, from its state in a simulation's run folder.

    They are personal, so no message carries them: on a real device the state is not here.
    """
    scheme, config = strategy.settings.scheme, strategy.settings.scheme_config
    if not scheme.stateful:
        return {}
    shape = fingerprint(strategy.task.initial)
    identity = Identity(scheme.name, scheme.version, shape, client)
    try:
        state = DiskStore(states).load(identity, before=strategy.settings.run.rounds + 1)
    except BadFile:
        return {}
    if state is None:
        personal = scheme.init_personal(config, strategy.task)
    else:
        personal = unflatten(scheme.personal, state.tensors)
    return scheme.diagnostics(personal, strategy.shared)


def _summary(
    strategy: SchemeStrategy,
    engine: str,
    events: Sequence[Event],
    rows: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    run = strategy.settings.run
    summary: dict[str, Any] = {
        "version": 1,
        "scheme": run.scheme,
        "engine": engine,
        "seed": run.seed,
        "rounds": run.rounds,
        "clients": len(rows),
        "seconds": sum(event["seconds"] for event in events),
        "bytes_up": sum(event["bytes_up"] for event in events),
        "bytes_down": sum(event["bytes_down"] for event in events),
        "failures": sum(len(event["failures"]) for event in events),
    }
    gains = [_gain(row) for row in rows]
    summary["helped"] = sum(gain > 0 for gain in gains)
    summary["hurt"] = sum(gain < 0 for gain in gains)
    for whose in ("shared", "personal"):
        summary[whose] = {}
        for what in ("accuracy", "loss"):
            name = f"{whose}_{what}"
            measured = [(strategy.roster.clients[r["client"]], r[name]) for r in rows if name in r]
            if measured:
                summary[whose][what] = _spread(measured)
    summary["shared_sha256"] = sha256(strategy.shared)
    return summary


def _gain(row: Mapping[str, Any]) -> float:
    """How much better the personal model does than the shared one, by accuracy or else by loss."""
    if "personal_accuracy" in row and "shared_accuracy" in row:
        return float(row["personal_accuracy"] - row["shared_accuracy"])
    if "personal_loss" in row and "shared_loss" in row:
        return float(row["shared_loss"] - row["personal_loss"])
    return math.nan
