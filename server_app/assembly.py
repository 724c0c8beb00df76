"""What a run is put together from before its rounds: settings, clients, a strategy a stage."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bouquet.core import cohort
from bouquet.core.errors import BadInput
from bouquet.core.task import Task
from bouquet.core.trees import Tree, flatten, plain, unflatten
from bouquet.problem import make_task
from bouquet.server_app.membership import Roster
from bouquet.server_app.strategy import SchemeStrategy
from bouquet.settings import Settings
from bouquet.stages import Stage
from bouquet.storage.files import BadFile
from bouquet.storage.runfolder import Checkpoint

# Seconds to wait for a device where the user sets no limit.
DEPLOYED_TIMEOUT = 600.0


def for_nodes(settings: Settings, engine: str) -> Settings:
    """Settings as nodes are told them, with the store the engine chooses if the user did not.

    Devices are told no path of the server's, and a device that is gone is not waited for forever.
    """
    if engine == "grpc":
        check_deployable(settings)
        hidden = replace(
            settings,
            data=replace(settings.data, path=""),
            model=replace(settings.model, weights=""),
        )
        timeout = settings.run.round_timeout or DEPLOYED_TIMEOUT
        told = hidden.with_run(store="disk", out="", state_dir="", round_timeout=timeout)
        return going_on(told)
    if settings.run.store != "auto":
        return settings
    return settings.with_run(store="memory" if engine == "inline" else "disk")


def going_on(settings: Settings) -> Settings:
    """Settings for devices: what one of them says of itself ends no run unless the user asks."""
    auto = settings.run.on_divergence == "auto"
    return settings.with_run(on_divergence="drop") if auto else settings


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


def hold_back_newcomers(settings: Settings, roster: Roster) -> None:
    """Keep newcomers away until their round, or until training is over."""
    join = settings.join
    if join.clients >= len(roster.clients):
        raise BadInput(
            f"join.clients must be less than {len(roster.clients)}, the number of clients, "
            f"not {join.clients}."
        )
    roster.hold_back(join.clients, join.round or settings.run.rounds + 1)


@dataclass(frozen=True)
class Assembly:
    """What every stage's strategy is made of.

    Parameters
    ----------
    settings : Settings
        Of the whole run, as nodes are told them.
    roster : Roster
        The clients, who have introduced themselves by the time a strategy is made.
    states, predictors : Path
        Where simulated nodes keep personal state and write final models; on a device, ``states``
        is the run's name.
    diagnostics : Path, optional
        Where simulated nodes write numbers about personal states.
    weights : str
        The server's own ``model.weights``, of which devices are told the checksum alone.
    """

    settings: Settings
    roster: Roster
    states: Path
    predictors: Path
    diagnostics: Path | None = None
    weights: str = ""

    def ways(self) -> dict[str, str]:
        """How clients train together in each stage, by its name: what ``cohort`` comes to."""
        return {
            stage.name: self._way(self.settings.in_stage(stage)) for stage in self.settings.stages
        }

    def _way(self, settings: Settings) -> str:
        return cohort.choice(settings.scheme, self._task(settings), settings.run.cohort)

    def _task(self, settings: Settings) -> Task:
        facts, model = self.roster.facts, settings.model
        assert facts is not None  # a roster that was updated has met a node
        settings = replace(settings, model=replace(model, weights=self.weights or model.weights))
        shape, classes = facts.input_shape, facts.classes
        return make_task(settings, shape, classes, facts.init, targets=facts.targets)

    def strategy(
        self, stage: Stage, warm: Tree | None = None, saved: Checkpoint | None = None
    ) -> SchemeStrategy:
        """A stage's strategy, from the weights the stage before left or from a checkpoint."""
        settings = self.settings.in_stage(stage)
        # A part that only this stage's model has, such as an adapter, starts as it would.
        task = self._task(settings).starting_from(warm or {})
        _check_sample(settings, self.roster)
        # Devices may not have the file that the first weights are from.
        unknown = bool(self.weights) and not settings.model.weights
        return SchemeStrategy(
            settings,
            task,
            self.roster,
            str(self.states / state_folder(self.settings, stage)),
            str(self.predictors),
            None if saved is None else _restored(settings, task, saved.server),
            stage,
            warm=bool(warm) or unknown,
            thawed=task.frozen.keys() & (warm or {}).keys(),
            outcomes_dir=str(self.predictors.with_name("outcomes")),
            diagnostics_dir=str(self.diagnostics or ""),
            # A simulation's nodes have all data, and states in one place unless it is a Context.
            anywhere=self.diagnostics is not None and settings.run.store != "context",
        )


def state_folder(settings: Settings, stage: Stage) -> str:
    """The folder of a stage's personal state: that of the stage before where it is of one kind.

    What a stateless stage leaves is nobody's start, so the next one has a folder of its own.
    """
    folder = ""
    before: tuple[str, ...] | None = None
    for earlier in settings.stages[: stage.number]:
        chosen = settings.in_stage(earlier)
        kind = (chosen.scheme.state_kind, chosen.split)
        if before is not None and kind != before:
            folder = f"stage{earlier.number}"
        before = () if chosen.scheme.stateless else kind
    return folder


def _check_sample(settings: Settings, roster: Roster) -> None:
    count, there = settings.run.clients_per_round, len(roster.present(1))
    if count > there:
        raise BadInput(
            f"clients-per-round must be at most {there}, the number of clients, not {count}."
        )


def _restored(settings: Settings, task: Task, saved: Tree) -> Any:
    """The server's state a checkpoint holds, or a refusal of one that is another model's.

    What grows with the clients, such as a graph or a client's own model, may be of any size.
    """
    scheme = settings.scheme
    fresh = flatten(scheme.init_server(task))
    statistics = {plain(name): name for name in task.statistics}
    saved = {_renamed(name, statistics): value for name, value in saved.items()}
    for name, value in fresh.items():
        there = saved.get(name, torch.zeros(0, dtype=torch.bool))
        fits = (there.dtype, there.ndim) == (value.dtype, value.ndim)
        if not fits or ("/" in name and there.shape != value.shape):
            raise BadFile(f"The checkpoint does not fit the run's model (see {name}).")
    server: Any = unflatten(scheme.records.server, saved)
    return server


def stored(server: Any) -> Tree:
    """The server's state for a checkpoint, with names as PyTorch has them."""
    return {plain(name): value for name, value in flatten(server).items()}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """A name in a record's tree or forest, whose last part is called otherwise."""
    place, slash, last = name.rpartition("/")
    return f"{place}{slash}{names.get(last, last)}"
