"""The run loop: rounds of training and evaluation, each logged, then a checkpoint."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from bouquet.core.errors import BadInput, RunFailed
from bouquet.flower.exchange import exchange
from bouquet.flower.private import fetching_at_most
from bouquet.imports import unchanging
from bouquet.server_app.assembly import Assembly, for_nodes, hold_back_newcomers, stored
from bouquet.server_app.divergence import stop_if_diverged
from bouquet.server_app.membership import Client, Roster
from bouquet.server_app.report import Report
from bouquet.server_app.strategy import SchemeStrategy
from bouquet.server_app.summary import (
    Numbers,
    add_evaluation,
    client_rows,
    event_of,
    history_line,
    hosts,
    summary_of,
)
from bouquet.settings import Settings
from bouquet.stages import Stage
from bouquet.storage.events import Event, Host, Observer
from bouquet.storage.marker import marked
from bouquet.storage.runfolder import Checkpoint, RunFolder, new_name


def run(
    grid: Grid,
    settings: Settings,
    folder: RunFolder,
    *,
    engine: str,
    resume: bool = False,
    observe: Observer = lambda event: None,
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
    torch.set_num_threads(1)  # sums depend on it, and engines must agree to the last bit
    settings = settings.pinned()
    stop, deployed = stop or threading.Event(), engine == "grpc"
    name = folder.read_name() if resume else new_name()
    if not (resume or deployed):
        _check_empty(_states(settings, folder))
    here = marked(*_written_to(settings, folder, engine))
    with unchanging(grid.run.run_id), here as markers:
        assembly = _assembly(settings, folder, name, engine, markers)
        assembly.roster.update(
            grid, assembly.settings, str(assembly.states), stop, deployed, folder.write_waiting
        )
        hold_back_newcomers(settings, assembly.roster)
        for stage in settings.stages:
            assembly.strategy(stage).gather(1)  # what a scheme refuses must not leave a folder
        if resume:
            saved = _reopened(folder, settings, assembly, name, deployed)
        else:
            saved = _opened(folder, settings, assembly, name)
        rounds = _Rounds(grid, folder, assembly, observe, stop, deployed)
        rounds.events = folder.read_events(saved.round)
        strategy = rounds.play(settings.stages, saved)
        return _ended(rounds, strategy, engine)


def full_evaluation(settings: Settings, round_: int, stage: Stage) -> bool:
    """Every few rounds, and at a stage's end, unless only the run's end was asked for."""
    every = settings.run.eval_every
    return round_ == settings.run.rounds or (
        every > 0 and (round_ % every == 0 or round_ == stage.last)
    )


@dataclass
class _Rounds:
    """A run's rounds: what they need, and what has come of those so far."""

    grid: Grid
    folder: RunFolder
    assembly: Assembly
    observe: Observer
    stop: threading.Event
    deployed: bool
    events: list[Event] = field(default_factory=list)
    hosts: dict[str, Host] = field(default_factory=dict)
    told: Mapping[str, Client] = field(default_factory=dict)
    scores: Mapping[str, Numbers] = field(default_factory=dict)

    def play(self, stages: Sequence[Stage], saved: Checkpoint) -> SchemeStrategy:
        """Play the rounds that are left; returns the last stage's strategy."""
        stage, *later = stages[saved.stage - 1 :]
        strategy = self.assembly.strategy(stage, self.folder.read_warm_start(stage.number), saved)
        self._play_stage(strategy, saved.round + 1)
        for stage in later:
            weights = strategy.task.frozen_statistics | strategy.shared
            strategy = self.assembly.strategy(stage, weights)
            self.folder.write_warm_start(stage.number, weights)
            self._play_stage(strategy, stage.first)
        return strategy

    def _play_stage(self, strategy: SchemeStrategy, first: int) -> None:
        strategy.gather(min(first, strategy.stage.last))  # nobody who comes after the stage
        for round_ in range(first, strategy.stage.last + 1):
            self._play_round(strategy, round_)

    def _play_round(self, strategy: SchemeStrategy, round_: int) -> None:
        settings, roster, started = strategy.settings, strategy.roster, time.perf_counter()
        roster.update(
            self.grid,
            self.assembly.settings,
            strategy.state_dir,
            self.stop,
            self.deployed,
            self.folder.write_waiting,
        )
        trained = self._train(strategy, round_)
        trained.seconds["round"] = time.perf_counter() - started  # without full evaluation
        event = event_of(strategy.stage.name, round_, trained)
        refused = roster.take_refusals()
        if refused:
            event["left_out"] = [
                {"node": str(node), "clients": sorted(roster.bound.get(node, ())), "reason": why}
                for node, why in refused.items()
            ]
        if self.told is not roster.clients:  # else nobody came or moved
            self.told, there = roster.clients, hosts(roster)
            if self.hosts != there:
                self.hosts = event["hosts"] = there
        evaluated = None
        if full_evaluation(settings, round_, strategy.stage):
            evaluated = self.evaluate(strategy, round_)
            add_evaluation(event, roster, evaluated, strategy.task.metric)
            self._append_history(round_)
        event["seconds"] = time.perf_counter() - started
        event["time"] = time.time()
        self.folder.append_event(event)
        self.events.append(event)
        if settings.run.on_divergence != "drop":
            stop_if_diverged(
                settings, self.folder, strategy.task.guess, self.events, trained, evaluated
            )
        server, stage = stored(strategy.server), strategy.stage.number
        self.folder.write_checkpoint(round_, settings.run.scheme, server, stage)
        self.observe(event)

    def _train(self, strategy: SchemeStrategy, round_: int) -> Report:
        messages = strategy.configure_train(round_, ArrayRecord(), ConfigRecord(), self.grid)
        replies = self._exchange(strategy, messages)
        started = time.perf_counter()
        strategy.take_in(round_, replies)
        strategy.report.seconds["aggregation"] = time.perf_counter() - started
        return strategy.report

    def evaluate(self, strategy: SchemeStrategy, round_: int) -> Report:
        """Evaluate everyone who is there; their scores are then the run's."""
        messages = strategy.configure_evaluate(round_, ArrayRecord(), ConfigRecord(), self.grid)
        strategy.aggregate_evaluate(round_, self._exchange(strategy, messages))
        self.scores = strategy.report.scores
        return strategy.report

    def adapt_newcomers(self, strategy: SchemeStrategy) -> list[Report]:
        """How clients that come after training do, after every round they adapt by."""
        last, join = strategy.settings.run.rounds, strategy.settings.join
        late = [client for client in strategy.roster.clients.values() if client.joins > last]
        reports = []
        for adapted in range(join.rounds + 1) if late else ():
            messages = strategy.ask_scores(last, late, adapted)
            strategy.aggregate_evaluate(last, self._exchange(strategy, messages))
            reports.append(strategy.report)
        return reports

    def _exchange(self, strategy: SchemeStrategy, messages: Sequence[Message]) -> list[Message]:
        timeout = strategy.settings.run.round_timeout
        with fetching_at_most(self.grid, strategy.most_due):
            return exchange(self.grid, messages, timeout, self.stop, strategy.enough)

    def _append_history(self, round_: int) -> None:
        if self.scores:
            diagnostics = self.folder.read_diagnostics(round_)
            self.folder.append_history(history_line(round_, self.scores, diagnostics))


def _assembly(
    settings: Settings, folder: RunFolder, name: str, engine: str, markers: list[str]
) -> Assembly:
    """What strategies are made of; a device has folders of its own, and is told a name alone."""
    told, roster = for_nodes(settings, engine), Roster(markers=markers)
    if engine == "grpc":
        own = settings.model.weights
        return Assembly(told, roster, Path(name), Path("predictors"), weights=own)
    return Assembly(
        told,
        roster,
        _states(settings, folder).absolute(),
        folder.predictors.absolute(),
        folder.diagnostics.absolute(),
    )


def _states(settings: Settings, folder: RunFolder) -> Path:
    """Where a simulation's clients keep their state."""
    return Path(settings.run.state_dir) if settings.run.state_dir else folder.states


def _written_to(settings: Settings, folder: RunFolder, engine: str) -> list[Path]:
    """The folders that a simulation's nodes write to, where they may be of other machines."""
    if engine not in ("ray", "flwr"):
        return []
    return [folder.path, *([Path(settings.run.state_dir)] if settings.run.state_dir else [])]


def _check_empty(states: Path) -> None:
    if states.exists() and (not states.is_dir() or any(states.iterdir())):
        raise BadInput(f"state-dir: {states} is no empty folder; choose one, or a new one.")


def _opened(folder: RunFolder, settings: Settings, assembly: Assembly, name: str) -> Checkpoint:
    """Make a new run's folder, with a checkpoint of before the first round."""
    _write_start(folder, settings, assembly, name, 0)
    strategy = assembly.strategy(settings.stages[0])
    folder.write_checkpoint(0, strategy.settings.run.scheme, stored(strategy.server))
    return folder.read_checkpoint()


def _reopened(
    folder: RunFolder, settings: Settings, assembly: Assembly, name: str, deployed: bool
) -> Checkpoint:
    """Bring a stopped run's folder back to its checkpoint."""
    saved = folder.read_checkpoint()
    folder.sweep(folder.states if deployed else _states(settings, folder))
    _write_start(folder, settings, assembly, name, saved.round)
    return saved


def _write_start(
    folder: RunFolder, settings: Settings, assembly: Assembly, name: str, done: int
) -> None:
    """Write what the rounds after ``done`` start from."""
    facts = assembly.roster.facts
    ways = " ".join(f"{stage}: {way}." for stage, way in assembly.ways().items())
    folder.write_config(settings.flat(), f"How clients train together, by cohort: {ways}")
    folder.write_name(name)
    folder.write_classes(facts.names if facts else ())
    folder.rewrite_events(folder.read_events(done))
    folder.cut_history(done)


def _ended(rounds: _Rounds, strategy: SchemeStrategy, engine: str) -> dict[str, Any]:
    """Write how a run ended; returns the summary."""
    folder, run, roster = rounds.folder, strategy.settings.run, strategy.roster
    if not rounds.scores:  # resumed after the last round
        rounds.evaluate(strategy, run.rounds)
    scores = dict(rounds.scores)
    if not scores:
        raise RunFailed("no client could be evaluated; events.jsonl says why.")
    if not any(event["clients"] for event in rounds.events):
        raise RunFailed("no client finished a single round; events.jsonl says why.")
    adaptation = rounds.adapt_newcomers(strategy)
    if adaptation:
        scores |= adaptation[-1].scores
    rows = client_rows(roster, scores, folder.read_diagnostics(run.rounds))
    folder.write_clients(rows)
    summary = summary_of(strategy, engine, rounds.events, rows, adaptation)
    whole = rounds.assembly.settings
    if whole.run.pipeline:
        summary |= {"pipeline": whole.run.pipeline, "scheme": whole.stages[-1].name}
    folder.write_summary(summary)
    folder.drop_diagnostics()
    return summary
