"""Runs as they are asked for: checked all together, watched, simulated one after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bouquet import engines
from bouquet.continuing import new_folder, resumed
from bouquet.core.errors import BadInput
from bouquet.imports import is_offered, named_paths
from bouquet.progress import progress
from bouquet.server_app.main import Job
from bouquet.settings import Settings, parse
from bouquet.storage.events import Event, Observer
from bouquet.storage.runfolder import RunFolder

# Of a run's folder, for as long as the run lasts: whom to tell of every round.
Watcher = Callable[[Path], AbstractContextManager[Observer]]


@dataclass(frozen=True)
class Plan:
    """A run to start, or to go on with.

    Parameters
    ----------
    values : mapping
        Flat keys: all there are to say, or those that change.
    resume : Path, optional
        The folder of the run to go on with.
    note : str
        What tells it from other runs of its scheme.
    """

    values: Mapping[str, object]
    resume: Path | None = None
    note: str = ""


@dataclass(frozen=True)
class Ready:
    """A run whose keys and folder are checked; nothing is written yet.

    Parameters
    ----------
    job : Job
        What an engine is to do.
    done : int
        How many rounds are done already.
    note : str
        What tells it from other runs of its scheme.
    """

    job: Job
    done: int = 0
    note: str = ""

    @property
    def folder(self) -> Path:
        """Where it writes."""
        return self.job.folder.path


def prepared(plans: Sequence[Plan], engine: str) -> list[Ready]:
    """The runs of some plans, so that a wrong key of the last stops the first."""
    if engine not in ("inline", "ray"):
        raise BadInput(f"engine must be 'inline' or 'ray', not {engine!r}.")
    ready = [_prepared(plan) for plan in plans]
    for one in ready:
        _refuse_objects(one.job.settings, engine)
    return ready


def simulate(
    ready: Sequence[Ready], engine: str, *, quiet: bool = False, watchers: Sequence[Watcher] = ()
) -> None:
    """Simulate one run after the other.

    Parameters
    ----------
    ready : sequence of Ready
        From :func:`prepared`, for the same engine.
    engine : str
        ``inline`` or ``ray``.
    quiet : bool
        Whether to show no progress.
    watchers : sequence of callable
        Who else watches each run.
    """
    if ready:
        with watched(ready, quiet=quiet, watchers=watchers) as jobs:
            engines.simulate(jobs, engine)


@contextmanager
def watched(
    ready: Sequence[Ready], *, quiet: bool = False, watchers: Sequence[Watcher] = ()
) -> Iterator[list[Job]]:
    """The jobs, with everyone told who watches them; for as long as the block lasts."""
    with ExitStack() as watching:
        follow = watching.enter_context(progress(quiet))
        jobs = []
        for one in ready:
            name, rounds = one.job.settings.scheme.name, one.job.settings.run.rounds
            observers = [follow(name, rounds, one.done, one.note)]
            observers += [watching.enter_context(watch(one.folder)) for watch in watchers]
            jobs.append(replace(one.job, observe=_all_told(observers)))
        yield jobs


def _prepared(plan: Plan) -> Ready:
    if plan.values.get("resume"):
        raise BadInput("resume=true is for flwr run; use --resume DIR.")
    if plan.resume is None:
        settings = engines.with_nodes(parse(plan.values))
        return Ready(Job(settings, new_folder(settings)), note=plan.note)
    folder = RunFolder(plan.resume)
    settings = resumed(folder, plan.values)
    if (plan.resume / "devices").exists():
        raise BadInput(f"--resume: {plan.resume} is a deployment's; use bouquet deploy.")
    return Ready(Job(settings, folder, resume=True), folder.read_checkpoint().round, plan.note)


def _refuse_objects(settings: Settings, engine: str) -> None:
    """What only this process has, other processes cannot use."""
    for what, name in (("scheme", settings.run.scheme), *named_paths(settings.flat())):
        if engine != "inline" and is_offered(name):
            raise BadInput(
                f"{what.removesuffix('.name')} is an object of this program, which ray's workers "
                "do not have: name it by import path, package.module:Name or ./file.py:Name."
            )


def _all_told(observers: Sequence[Observer]) -> Observer:
    def tell(event: Event) -> None:
        for observe in observers:
            observe(event)

    return tell
