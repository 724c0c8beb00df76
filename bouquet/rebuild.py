"""A client's own model from what a run left behind, without training.

The run's config, the server's checkpoint and the clients' states say all there is to say: the
client's node is asked to evaluate its clients once more, as in the run's last round, so the bits
are those that ``save-predictors`` would have written.
"""

import json
import tempfile
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from torch import nn

from bouquet.client_app.predictor import Predictor, find_predictor, read_predictor, written
from bouquet.continuing import disks_of, settings_of
from bouquet.core.errors import BadInput
from bouquet.engines import LocalNodes
from bouquet.flower import wire
from bouquet.flower.exchange import exchange
from bouquet.models import build, filled
from bouquet.server_app.assembly import Assembly, hold_back_newcomers, state_folder
from bouquet.server_app.membership import Client, Roster
from bouquet.server_app.strategy import SchemeStrategy
from bouquet.settings import Settings
from bouquet.storage.files import file_name
from bouquet.storage.runfolder import Checkpoint, RunFolder


def predictor_of(run: Path, client: str) -> Predictor:
    """A client's own model: the one a run or a device wrote, or else built anew.

    Parameters
    ----------
    run : Path
        A run's folder, finished or stopped, or a device's.
    client : str
        Whose it is.
    """
    if written(run, client) is not None or not (run / "config.toml").exists():
        return read_predictor(find_predictor(run, client))
    with tempfile.TemporaryDirectory(prefix="bouquet-") as aside:
        return read_predictor(rebuild(RunFolder(run), client, Path(aside)))


def shared_model(run: Path) -> nn.Module:
    """The model the server holds, as every client would use it unchanged.

    Parameters
    ----------
    run : Path
        A run's folder, finished or stopped.
    """
    folder = RunFolder(run)
    settings, saved = settings_of(folder), folder.read_checkpoint()
    with closing(LocalNodes(1)) as grid:
        assembly = Assembly(settings.with_run(store="disk"), Roster(), folder.states, run)
        strategy = _stopped_at(saved, folder, assembly, grid)
        chosen, facts = strategy.settings, strategy.roster.facts
        assert facts is not None  # the node was met
        module = build(
            chosen.model.bare,
            facts.input_shape,
            facts.classes,
            chosen.run.seed,
            chosen.dtype,
            replace(chosen.personal, split=chosen.split),
        )
        task = strategy.task
        filled(module, task.state_dict({**task.frozen, **strategy.shared}))
    return module.eval()


def rebuild(folder: RunFolder, client: str, into: Path) -> Path:
    """Write the model of a client, and of those on its node, to a folder; returns its file."""
    settings, saved = settings_of(folder), folder.read_checkpoint()
    nodes = [len(event["hosts"]) for event in folder.read_events(saved.round) if "hosts" in event]
    if not nodes:
        raise BadInput(f"{folder.path} has not finished a round yet, so nobody has a model.")
    told = settings.with_run(store="disk", save_outcomes=False)
    states = _states(settings, folder, client, state_folder(told, told.stages[saved.stage - 1]))
    with closing(LocalNodes(nodes[-1])) as grid:
        assembly = Assembly(told, Roster(), states, into)
        strategy = _stopped_at(saved, folder, assembly, grid)
        asked, adapt = _neighbours(settings, strategy.roster, client, saved)
        if strategy.settings.scheme.stateful and adapt < 0:
            _check_state(settings, folder, Path(strategy.state_dir), client, saved)
        messages = strategy.ask_scores(saved.round, asked, adapt)
        for message in messages:
            message.content.config_records[wire.NOTE]["predictors-dir"] = str(into)
        replies = exchange(grid, messages, told.run.round_timeout, threading.Event())
        strategy.aggregate_evaluate(saved.round, replies)
    if client not in strategy.report.clients:
        raise BadInput(f"Client {client} has no model: {strategy.report.failures[client]}.")
    return into / f"{file_name(client)}.safetensors"


def _stopped_at(
    saved: Checkpoint, folder: RunFolder, assembly: Assembly, grid: LocalNodes
) -> SchemeStrategy:
    """The strategy as it was after a run's last round, among clients as they were then."""
    told, roster = assembly.settings, assembly.roster
    roster.update(grid, told, str(assembly.states), threading.Event())
    hold_back_newcomers(told, roster)
    stage = told.stages[saved.stage - 1]
    strategy = assembly.strategy(stage, folder.read_warm_start(stage.number), saved)
    strategy.gather(saved.round)
    return strategy


def _neighbours(
    settings: Settings, roster: Roster, client: str, saved: Checkpoint
) -> tuple[Sequence[Client], int]:
    """The clients that were evaluated with this one, and the rounds by which newcomers adapt.

    All of a node's clients are one computation, whose bits depend on how many they are.
    """
    rounds = settings.run.rounds
    if client not in roster.clients:
        known = ", ".join(sorted(roster.clients)[:5])
        raise BadInput(f"--client must be one of {known}, ..., not {client!r}.")
    who = roster.clients[client]
    alike = [one for one in roster.clients.values() if one.node == who.node]
    if who.joins <= saved.round:
        return [one for one in alike if one.joins <= saved.round], -1
    if who.joins <= rounds or saved.round < rounds:
        raise BadInput(
            f"Client {client} comes late; the run was stopped before it, in round {saved.round}."
        )
    return [one for one in alike if one.joins > rounds], settings.join.rounds


def _states(settings: Settings, folder: RunFolder, client: str, part: str) -> Path:
    """Where a client's state is: in a simulation's folder, or a device's on this machine."""
    own, disks = settings.run.state_dir, disks_of(settings, folder)
    if _deployed(folder) and not any(disks.glob("*/sent")):
        raise _elsewhere(folder, client)
    folders = [Path(own or folder.states), *sorted(disks.glob(f"*/runs/{folder.read_name()}"))]
    file = f"{file_name(client)}.safetensors"
    return next((one for one in folders if (one / part / file).exists()), folders[0]).absolute()


def _deployed(folder: RunFolder) -> bool:
    summary = folder.path / "summary.json"
    return summary.exists() and json.loads(summary.read_text("utf-8"))["engine"] == "grpc"


def _check_state(
    settings: Settings, folder: RunFolder, states: Path, client: str, saved: Checkpoint
) -> None:
    """Refuse to take a client whose state is not here for one that never had any."""
    first = settings.stages[saved.stage - 1].first
    events = [one for one in folder.read_events(saved.round) if one["round"] >= first]
    trained = any(client in one["clients"] for one in events)
    if (trained or settings.run.personal_from == "keep") and not (
        states / f"{file_name(client)}.safetensors"
    ).exists():
        raise _elsewhere(folder, client)


def _elsewhere(folder: RunFolder, client: str) -> BadInput:
    return BadInput(
        f"What client {client} keeps is not in {folder.path} but on its device: run with "
        f"-c save-predictors=true, then `bouquet export STATE-DIR --client {client}` there."
    )
