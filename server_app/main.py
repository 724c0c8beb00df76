"""The ServerApp."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bouquet.continuing import new_folder, resumed
from bouquet.core.errors import BadInput
from bouquet.flower.private import is_deployed, log
from bouquet.server_app.loop import run
from bouquet.settings import Settings, parse
from bouquet.storage.events import Event, Observer, telling
from bouquet.storage.runfolder import RunFolder


@dataclass(frozen=True)
class Job:
    """One run.

    Parameters
    ----------
    settings : Settings
        What to do, with the number of nodes settled.
    folder : RunFolder
        Where to write.
    resume : bool
        Whether to go on from the folder's checkpoint.
    observe : callable
        Told of every round as it ends.
    """

    settings: Settings
    folder: RunFolder
    resume: bool = False
    observe: Observer = lambda event: None


def make_app(
    jobs: Iterable[Job], engine: str, stop: threading.Event, summaries: list[dict[str, Any]]
) -> ServerApp:
    """A ServerApp that does jobs one after the other, so that an engine starts only once.

    Parameters
    ----------
    jobs : iterable of Job
        What to do.
    engine : str
        Its name.
    stop : Event
        Set to end the runs at once.
    summaries : list
        Each run's summary is added: a ServerApp has no other way to return anything.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        for job in jobs:
            summaries.append(
                run(
                    grid,
                    job.settings,
                    job.folder,
                    engine=engine,
                    resume=job.resume,
                    observe=job.observe,
                    stop=stop,
                )
            )

    return app


app = ServerApp()
# How a run that was asked for wrongly ends: Flower passes on an error's words, not its kind.
WRONG_INPUT = "wrong input: "


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run as ``flwr run`` asks, with the keys of its run config."""
    try:
        _run(grid, context)
    except BadInput as error:
        raise BadInput(f"{WRONG_INPUT}{error}") from error


def _run(grid: Grid, context: Context) -> None:
    settings = parse(context.run_config).pinned()
    engine = "grpc" if is_deployed(grid) else "flwr"  # SuperNodes, or a simulation
    resume = settings.run.resume
    if not resume:
        folder = new_folder(settings)
    else:
        folder = RunFolder(Path(settings.run.out))
        keys = {k: v for k, v in settings.flat().items() if k not in ("out", "resume")}
        settings = resumed(folder, keys)
    path, rounds, words = folder.path.absolute(), settings.run.rounds, telling()

    def observe(event: Event) -> None:
        log(INFO, "%s round %s/%s  %s", event["stage"], event["round"], rounds, words(event))

    log(INFO, "The run's folder is %s", path)
    run(grid, settings, folder, engine=engine, resume=resume, observe=observe)
    log(INFO, "The run is finished; its folder is %s", path)
