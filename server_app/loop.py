"""The run loop: rounds of training, evaluation, the log, checkpoints."""

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from bouquet.client_app.stores import DiskStore
from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.measure import LOSS, Measure
from bouquet.core.trees import Tree, fingerprint, flatten, sha256, unflatten
from bouquet.flower.exchange import DEPLOYED_PAUSE, exchange, unanswered
from bouquet.flower.private import HttpGrid
from bouquet.problem import make_task
from bouquet.server_app.divergence import stop_if_diverged
from bouquet.server_app.membership import Client, Roster, by_node
from bouquet.server_app.strategy import Report, SchemeStrategy, restored
from bouquet.settings import Settings
from bouquet.stages import Stage
from bouquet.storage.files import BadFile
from bouquet.storage.runfolder import Checkpoint, RunFolder, new_name
from bouquet.storage.state import Identity

Event = dict[str, Any]
# Seconds to wait for a device where the user sets no limit.
DEPLOYED_TIMEOUT = 600.0


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
    stop, deployed = stop or threading.Event(), engine == "grpc"
    told = _told(settings, engine)
    torch.set_num_threads(1)  # sums depend on it, and engines must agree to the last bit
    name = folder.read_name() if resume else new_name()
    states = Path(settings.run.state_dir) if settings.run.state_dir else folder.states
    # A device has folders of its own and is told the run's name alone.
    home = Path(name) if deployed else states.absolute()
    predictors = Path("predictors") if deployed else folder.predictors.absolute()
    diagnostics = None if deployed else folder.diagnostics.absolute()
    roster = Roster()
    roster.update(grid, told, str(home), stop, deployed)
    _hold_back(settings, roster)
    begin = functools.partial(_strategy, told, predictors, diagnostics, home, roster)
    for stage in settings.stages:
        begin(stage).gather(1)  # what a scheme refuses must not leave a folder behind
    events: list[Event] = []
    if resume:
        saved = folder.read_checkpoint()
        events = folder.read_events(saved.round)
        folder.sweep(folder.states if deployed else states)
    elif not deployed and states.exists() and (not states.is_dir() or any(states.iterdir())):
        raise BadInput(f"state-dir: {states} is no empty folder; choose one, or a new one.")
    folder.write_config(settings.flat())
    folder.write_name(name)
    folder.write_classes(roster.facts.names if roster.facts else ())
    folder.rewrite_events(events)
    folder.cut_history(saved.round if resume else 0)
    if not resume:
        strategy = begin(settings.stages[0])
        folder.write_checkpoint(0, strategy.settings.run.scheme, flatten(strategy.server))
        saved = folder.read_checkpoint()
    scores: dict[str, dict[str, float]] = {}
    hosts: Event = {}
    for stage in settings.stages[saved.stage - 1 :]:
        if stage.number == saved.stage:
            strategy = begin(stage, folder.read_warm_start(stage.number), saved)
        else:
            warm = strategy.shared
            strategy = begin(stage, warm)
            folder.write_warm_start(stage.number, warm)
        strategy.gather(max(saved.round + 1, stage.first))
        chosen = strategy.settings
        for round_ in range(max(saved.round + 1, stage.first), stage.last + 1):
            started = time.perf_counter()
            roster.update(grid, told, strategy.state_dir, stop, deployed)
            trained = _train(strategy, grid, round_, stop)
            trained.seconds["round"] = time.perf_counter() - started  # without full evaluation
            event = _event(stage.name, roster, round_, trained)
            if hosts != (hosts := _hosts(roster)):
                event["hosts"] = hosts
            evaluated = None
            if full_evaluation(chosen, round_, stage):
                evaluated = _evaluate(strategy, grid, round_, stop)
                scores = evaluated.scores
                _add(event, roster, evaluated)
                event |= strategy.task.metric.said
                _add_history(folder, round_, evaluated)
            event["seconds"] = time.perf_counter() - started
            event["time"] = time.time()
            folder.append_event(event)
            if chosen.run.on_divergence == "stop":
                stop_if_diverged(
                    chosen, folder, strategy.task.classes, [*events, event], trained, evaluated
                )
            folder.write_checkpoint(
                round_, chosen.run.scheme, flatten(strategy.server), stage.number
            )
            events.append(event)
            observe(event)
    if not scores:  # resumed after the last round
        scores = _evaluate(strategy, grid, settings.run.rounds, stop).scores
    if not scores:
        raise RunFailed("no client could be evaluated; events.jsonl says why.")
    if not any(event["clients"] for event in events):
        raise RunFailed("no client finished a single round; events.jsonl says why.")
    adaptation = _adapt_newcomers(strategy, grid, stop)
    if adaptation:
        scores = scores | adaptation[-1].scores
    rows = _rows(strategy, scores, deployed)
    folder.write_clients(rows)
    summary = _summary(strategy, engine, events, rows, adaptation)
    if settings.run.pipeline:
        summary |= {"pipeline": settings.run.pipeline, "scheme": settings.stages[-1].name}
    folder.write_summary(summary)
    folder.drop_diagnostics()
    return summary


def _told(settings: Settings, engine: str) -> Settings:
    """What nodes are told: settings with the store the engine chooses where the user did not.

    Devices are told no path of the server's, and a device that is gone is not waited for forever.
    """
    if engine == "grpc":
        check_deployable(settings)
        hidden = replace(settings, data=replace(settings.data, path=""))
        timeout = settings.run.round_timeout or DEPLOYED_TIMEOUT
        return hidden.with_run(store="disk", out="", state_dir="", round_timeout=timeout)
    if settings.run.store != "auto":
        return settings
    return settings.with_run(store="memory" if engine == "inline" else "disk")


def check_deployable(settings: Settings) -> None:
    """Refuse what devices cannot or must not do."""
    if any(settings.in_stage(stage).scheme.pooled for stage in settings.stages):
        raise BadInput(
            "scheme must not be 'centralized' in a deployment: the data stay on the devices."
        )
    if settings.run.store not in ("auto", "disk"):
        raise BadInput(
            f"store must be 'disk' in a deployment, not {settings.run.store!r}: a device's memory "
            "does not outlive a message."
        )


def _strategy(
    told: Settings,
    predictors: Path,
    diagnostics: Path | None,
    states: Path,
    roster: Roster,
    stage: Stage,
    warm: Tree | None = None,
    saved: Checkpoint | None = None,
) -> SchemeStrategy:
    """A stage's strategy, from the weights the stage before left or from a checkpoint."""
    settings, facts = told.in_stage(stage), roster.facts
    assert facts is not None  # a roster that was updated has met a node
    task = make_task(settings, facts.input_shape, facts.classes, facts.init)
    _check_sample(settings, roster)
    if warm:
        # A part that only this stage's model has, such as an adapter, starts as it would.
        start = {name: warm.get(name, value) for name, value in task.initial.items()}
        task = replace(task, initial=start)
    server = None if saved is None else restored(settings, task, saved.server)
    place = states / _state_folder(told, stage)
    return SchemeStrategy(
        settings,
        task,
        roster,
        str(place),
        str(predictors),
        server,
        stage,
        warm=bool(warm),
        outcomes_dir=str(predictors.with_name("outcomes")),
        diagnostics_dir=str(diagnostics or ""),
    )


def _state_folder(settings: Settings, stage: Stage) -> str:
    """Where a stage's personal state is: with the stage before where it is of one kind.

    What a stateless stage leaves is nobody's start, so the next one has a place of its own.
    """
    place = ""
    before: tuple[str, ...] | None = None
    for one in settings.stages[: stage.number]:
        chosen = settings.in_stage(one)
        kind = (chosen.scheme.state_kind, chosen.split)
        if before is not None and kind != before:
            place = f"stage{one.number}"
        before = () if chosen.scheme.stateless else kind
    return place


def _check_sample(settings: Settings, roster: Roster) -> None:
    count, there = settings.run.clients_per_round, len(roster.present(1))
    if count > there:
        raise BadInput(
            f"clients-per-round must be at most {there}, the number of clients, not {count}."
        )


def _hold_back(settings: Settings, roster: Roster) -> None:
    """Keep newcomers away until their round, or until training is over."""
    join = settings.join
    if join.clients >= len(roster.clients):
        raise BadInput(
            f"join.clients must be less than {len(roster.clients)}, the number of clients, "
            f"not {join.clients}."
        )
    roster.hold_back(join.clients, join.round or settings.run.rounds + 1)


def _adapt_newcomers(strategy: SchemeStrategy, grid: Grid, stop: threading.Event) -> list[Report]:
    """How clients that come after training do, after every round they adapt by."""
    run, join = strategy.settings.run, strategy.settings.join
    late = [one for one in strategy.roster.clients.values() if one.joins > run.rounds]
    reports = []
    for adapted in range(join.rounds + 1) if late else ():
        messages = strategy.ask_scores(run.rounds, late, adapted)
        strategy.aggregate_evaluate(run.rounds, _exchange(strategy, grid, messages, stop))
        reports.append(strategy.report)
    return reports


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
    timeout = strategy.settings.run.round_timeout
    if not isinstance(grid, HttpGrid):
        return exchange(grid, messages, timeout, stop)
    online = set(grid.get_node_ids())  # a device that is gone costs the timeout once, not ever
    there = [one for one in messages if one.metadata.dst_node_id in online]
    gone = [
        unanswered(one, "its node is not there")
        for one in messages
        if one.metadata.dst_node_id not in online
    ]
    return gone + exchange(grid, there, timeout, stop, DEPLOYED_PAUSE)


def full_evaluation(settings: Settings, round_: int, stage: Stage) -> bool:
    """Every few rounds, and at a stage's end, unless only the run's end was asked for."""
    every = settings.run.eval_every
    return round_ == settings.run.rounds or (
        every > 0 and (round_ % every == 0 or round_ == stage.last)
    )


def _event(stage: str, roster: Roster, round_: int, report: Report) -> Event:
    return {
        "version": 1,
        "round": round_,
        "stage": stage,
        "seconds": 0.0,
        "timing": report.seconds,
        "nodes": report.nodes,
        "clients": report.clients,
        "failures": [{"client": c, "reason": why} for c, why in report.failures.items()],
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "evaluated": 0,
        "metrics": {},
    }


def _newcomers(roster: Roster, report: Report) -> Event:
    """The same means over the clients that came late, once they are there."""
    late = {c: scores for c, scores in report.scores.items() if roster.clients[c].joins}
    return {"newcomers": _means(roster, late)} if late else {}


def _add(event: Event, roster: Roster, report: Report) -> None:
    """Add an evaluation of all clients, with the models they have after the round, to its event."""
    event["timing"]["evaluation"] = report.seconds.get("evaluation", 0.0)
    event["failures"] += [{"client": c, "reason": why} for c, why in report.failures.items()]
    event["bytes_up"] += report.bytes_up
    event["bytes_down"] += report.bytes_down
    for node, seconds in report.nodes.items():
        spent = [one for one in (event["nodes"].get(node), seconds) if one is not None]
        event["nodes"][node] = sum(spent) if spent else None
    event["evaluated"] = len(report.scores)
    event["metrics"] = _means(roster, report.scores)
    event |= _newcomers(roster, report)


def _hosts(roster: Roster) -> Event:
    """Which clients live where, and Flower's id of the node, which changes from run to run."""
    return {
        str(group[0].place): {"id": str(node), "clients": [client.id for client in group]}
        for node, group in by_node(roster.clients.values()).items()
    }


def _add_history(folder: RunFolder, round_: int, report: Report) -> None:
    """Note what every client that was evaluated did in a round, column by column."""
    if not report.scores:
        return
    told = folder.read_diagnostics(round_)
    rows = [{**report.scores[one], **told.get(one, {})} for one in sorted(report.scores)]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [_short(row.get(name)) for row in rows] for name in names}
    known = {n: values for n, values in columns.items() if any(v is not None for v in values)}
    line = {"version": 1, "round": round_, "clients": sorted(report.scores), **known}
    folder.append_history(line)


def _short(value: float | None) -> float | None:
    """As many digits as a chart or a table can use: a long run's history is large."""
    return None if value is None else float(f"{value:.6g}")


def _means(roster: Roster, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for told in scores.values() for name in told):
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
    with np.errstate(over="ignore", invalid="ignore"):  # a loss may have exploded
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
    strategy: SchemeStrategy, scores: Mapping[str, Mapping[str, float]], deployed: bool
) -> list[dict[str, Any]]:
    """The table of clients; where some come late, with the round they came in."""
    rows = []
    late = any(client.joins for client in strategy.roster.clients.values())
    for client in sorted(strategy.roster.clients.values(), key=lambda one: one.id):
        measured = scores.get(client.id, {})
        rows.append(
            {
                "client": client.id,
                "node": client.place,
                "train_examples": client.train_examples,
                "test_examples": client.test_examples,
                **({"joined": client.joins} if late else {}),
                **measured,
                **({} if deployed else _diagnostics(strategy, client)),
            }
        )
    return rows


def _diagnostics(strategy: SchemeStrategy, client: Client) -> dict[str, float]:
    """The scheme's own numbers about a client, from its state in a simulation's run folder.

    They are personal, so no message carries them: on a real device the state is not here.
    """
    scheme = strategy.settings.scheme
    if not scheme.stateful or client.joins > strategy.settings.run.rounds:
        return {}
    shape = fingerprint(strategy.task.initial)
    identity = Identity(scheme.state_kind, scheme.version, shape, client.id)
    try:
        state = DiskStore(Path(strategy.state_dir)).load(
            identity, before=strategy.settings.run.rounds + 1
        )
    except BadFile:
        return {}
    if state is None:
        personal = scheme.init_personal(strategy.task, client.train_examples)
    else:
        personal = unflatten(scheme.records.personal, state.tensors)
    found = scheme.diagnostics(personal, strategy.shared)
    return {name: float(value) for name, value in found.items()}


def _summary(
    strategy: SchemeStrategy,
    engine: str,
    events: Sequence[Event],
    rows: Sequence[Mapping[str, Any]],
    adaptation: Sequence[Report],
) -> dict[str, Any]:
    run = strategy.settings.run
    summary: dict[str, Any] = {
        "version": 1,
        "scheme": strategy.settings.scheme.name,
        "engine": engine,
        "seed": run.seed,
        "rounds": run.rounds,
        "clients": len(rows),
        "seconds": sum(event["seconds"] for event in events),
        "bytes_up": sum(event["bytes_up"] for event in events),
        "bytes_down": sum(event["bytes_down"] for event in events),
        "failures": sum(len(event["failures"]) for event in events),
    }
    measures = (strategy.task.metric, LOSS)
    gains = [_gain(row, measures) for row in rows]
    summary["helped"] = sum(gain > 0 for gain in gains)
    summary["hurt"] = sum(gain < 0 for gain in gains)
    summary |= strategy.task.metric.said
    summary |= _spreads(strategy.roster, rows, measures)
    late = [row for row in rows if row.get("joined")]
    if late:
        summary["newcomers"] = {
            "clients": [row["client"] for row in late],
            "joined": late[0]["joined"],
            **_spreads(strategy.roster, late, measures),
            "others": _spreads(
                strategy.roster, [row for row in rows if not row["joined"]], measures
            ),
            "adaptation": [_means(strategy.roster, report.scores) for report in adaptation],
        }
    summary["shared_sha256"] = sha256(strategy.shared)
    return summary


def _spreads(
    roster: Roster, rows: Sequence[Mapping[str, Any]], measures: Sequence[Measure]
) -> dict[str, Any]:
    """How the shared and the personal models do on clients' own test data."""
    spreads: dict[str, Any] = {"shared": {}, "personal": {}}
    for whose, found in spreads.items():
        for what in measures:
            name = f"{whose}_{what.name}"
            measured = [(roster.clients[row["client"]], row[name]) for row in rows if name in row]
            if measured:
                found[what.name] = _spread(measured)
    return spreads


def _gain(row: Mapping[str, Any], measures: Sequence[Measure]) -> float:
    """How much better the personal model does than the shared one, by the first measure known."""
    for what in measures:
        shared, personal = row.get(f"shared_{what.name}"), row.get(f"personal_{what.name}")
        if shared is not None and personal is not None:
            return float(what.gain(shared, personal))
    return math.nan
