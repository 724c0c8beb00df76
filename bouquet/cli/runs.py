"""Commands that train: simulate, compare, sweep, deploy."""

import logging
import os
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bouquet.cli import completion
from bouquet.cli.options import (
    ConfigOption,
    DashboardOption,
    Engine,
    EngineOption,
    JsonOption,
    KeysOption,
    OutOption,
    QuietOption,
    ResumeOption,
    TensorboardOption,
    key_values,
)

if TYPE_CHECKING:
    from bouquet.jobs import Plan, Watcher


class Interrupted(Exception):
    """A run that was stopped from outside, and how it goes on."""

    def __init__(
        self, command: str, folder: Path, *, begun: bool, option: str = "--resume"
    ) -> None:
        again = f"bouquet {command} {option} {shlex.quote(str(folder))}"
        how = f"to go on from its last finished round: {again}"
        super().__init__(
            f"interrupted; {how}" if begun else "interrupted before anything was written."
        )


def simulate(
    engine: EngineOption = Engine.inline,
    config: ConfigOption = None,
    keys: KeysOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    dashboard: DashboardOption = False,
    tensorboard: TensorboardOption = False,
) -> None:
    """Train on simulated clients.

    [bold]Examples[/bold]

      bouquet simulate -c scheme=apfl -c rounds=30

      bouquet simulate --engine ray -c data.clients=100 -c clients-per-round=10

      bouquet simulate --resume runs/20260101-120000-apfl-digits -c rounds=60

      bouquet simulate --quiet --json > summary.json

      bouquet simulate -c rounds=500 --dashboard
    """
    from bouquet.api import Run
    from bouquet.cli.display import show, show_json, told
    from bouquet.jobs import Plan

    plan = Plan(key_values(config, keys, out, resume), resume)
    (folder,) = _simulated("simulate", engine, [plan], None, quiet, dashboard, tensorboard)
    run = Run(folder)
    if as_json:
        show_json(told(run))
    elif quiet:
        print(folder)
    else:
        show([run])


def compare(
    schemes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Schemes to run, one after the other.",
            metavar="SCHEME...",
            autocompletion=completion.schemes,
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Run each scheme with each of these seeds.", metavar="0,1,2")
    ] = "",
    engine: EngineOption = Engine.inline,
    config: ConfigOption = None,
    keys: KeysOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs' folders.", metavar="DIR")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on with the comparison in this folder: runs that are not finished, then those "
            "that are missing, also of schemes and seeds that are new.",
            metavar="DIR",
        ),
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    dashboard: DashboardOption = False,
    tensorboard: TensorboardOption = False,
) -> None:
    """Train the same clients with several schemes and put the results in one table.

    [bold]Examples[/bold]

      bouquet compare fedavg local apfl -c rounds=30

      bouquet compare fedavg apfl --seeds 0,1,2 --out runs/seeds

      bouquet compare --resume runs/seeds
    """
    from bouquet import comparison
    from bouquet.api import Run
    from bouquet.cli.display import show, show_json, show_seeds, told

    values = key_values(config, keys, out, resume)
    whole = comparison.begun(schemes or [], comparison.read_seeds(seeds), values, resume)
    plans = whole.plans()
    with whole.kept():
        _simulated("compare", engine, plans, whole.folder, quiet, dashboard, tensorboard)
    runs = [Run(folder) for folder in whole.runs()]
    if as_json:
        show_json([told(run) for run in runs])
    elif quiet:
        print(whole.folder)
    elif whole.seeds:
        show_seeds(runs, whole.folder)
    else:
        show(runs)


def sweep(
    file: Annotated[
        Path | None,
        typer.Argument(help="What to search, and how; docs/sweeps.md.", metavar="FILE.toml"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The sweep's folder, instead of the file's `out`; if it holds the same sweep, "
            "that goes on.",
            metavar="DIR",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the sweep in this folder.", metavar="DIR")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="inline: workers on this machine; ray: a Ray cluster's.")
    ] = Engine.inline,
    workers: Annotated[
        int, typer.Option(help="Trials that run side by side; 0 = one a core.", min=0)
    ] = 0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search for good keys of several schemes, then compare the schemes with them.

    Settings are compared on the clients' validation data; the best of each scheme
    is trained on all training data with every seed, and judged on test data. What
    is done stays done: after a stop or a crash the same command goes on.

    [bold]Examples[/bold]

      bouquet sweep examples/sweep.toml

      bouquet sweep examples/sweep.toml --out runs/search --workers 8

      bouquet sweep --resume runs/search

      bouquet report runs/search
    """
    from bouquet.cli.display import show_json, show_sweep, told_of_sweep
    from bouquet.core.errors import BadInput
    from bouquet.data import DataConfig
    from bouquet.imports import called
    from bouquet.sweeping import course
    from bouquet.sweeping.asked import read_file

    if (file is None) == (resume is None):
        raise BadInput("sweep takes a file, or --resume and the folder of a sweep.")
    if resume is not None and out is not None:
        raise BadInput("--resume goes on in the sweep's own folder; it does not go with --out.")
    if file is None:
        assert resume is not None
        asked, folder = course.resumed(resume), resume
    else:
        asked, named = read_file(file)
        data = called(str(asked.keys.get("data.name") or DataConfig().name))
        folder = course.folder_of(asked, str(out or named), data)
    quiet_flower()
    try:
        course.run(asked, folder, engine=engine.value, count=workers, quiet=quiet)
    except KeyboardInterrupt:
        again = "sweep" if engine is Engine.inline else f"sweep --engine {engine}"
        raise Interrupted(again, folder, begun=(folder / "sweep.toml").exists()) from None
    if as_json:
        show_json(told_of_sweep(folder))
    elif quiet:
        print(folder)
    else:
        show_sweep(folder)


def deploy(
    nodes: Annotated[
        int | None, typer.Option(help="How many nodes host the clients.", min=1)
    ] = None,
    config: ConfigOption = None,
    keys: KeysOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    policy: Annotated[
        str, typer.Option(help="The nodes' rules, as of bouquet node.", metavar="FILE")
    ] = "",
    dashboard: DashboardOption = False,
    tensorboard: TensorboardOption = False,
) -> None:
    """Train over gRPC: a SuperLink and nodes on this machine, with TLS and a key a node.

    Each node is a process of its own and keeps what is personal in a folder of
    its own. All that was started is stopped at the end; logs of every process
    are in the run's folder.

    [bold]Example[/bold]

      bouquet deploy --nodes 3 -c scheme=apfl -c data.clients=3 -c rounds=3
    """
    from bouquet.api import Run
    from bouquet.cli.display import err, show
    from bouquet.client_app.policy import read_policy
    from bouquet.deploy.deployment import deploy, hosts_of, prepared
    from bouquet.jobs import Ready, watched
    from bouquet.server_app.main import Job

    values = key_values(config, keys, out, resume)
    watchers = _watchers(tensorboard)
    quiet_flower()
    settings, folder = prepared(values, nodes, resume)
    read_policy(policy)  # a wrong one starts nothing
    hosts = hosts_of(settings, folder, policy)
    done = 0 if resume is None else folder.read_checkpoint().round
    if resume is None:
        clients = sum(len(host.clients) for host in hosts)
        settings = settings.with_run(min_clients=settings.run.min_clients or clients)
    words = f"{len(hosts)} nodes are starting; logs: {folder.path / 'logs'}"
    err.print(words, highlight=False, soft_wrap=True)
    told = settings.with_run(resume=resume is not None, out=str(folder.path.absolute()))
    ready = Ready(Job(told, folder), done)
    with _page(dashboard, folder.path), watched([ready], watchers=watchers) as (job,):
        try:
            deploy(told, folder, hosts, job.observe)
        except KeyboardInterrupt:
            raise Interrupted("deploy", folder.path, begun=folder.checkpoint.exists()) from None
    show([Run(folder.path)])


def _simulated(
    command: str,
    engine: Engine,
    plans: "Sequence[Plan]",
    whole: Path | None,
    quiet: bool,
    dashboard: bool,
    tensorboard: bool,
) -> list[Path]:
    """The runs' folders, once all are simulated.

    ``whole`` is the folder that holds them all, if one does.
    """
    from bouquet import jobs

    quiet_flower()
    watchers = _watchers(tensorboard)
    ready = jobs.prepared(plans, engine.value)
    if not ready:
        return []
    folder = whole or ready[0].folder
    with _page(dashboard, folder):
        try:
            jobs.simulate(ready, engine.value, quiet=quiet, watchers=watchers)
        except KeyboardInterrupt:
            again = command if engine is Engine.inline else f"{command} --engine {engine}"
            begun = any(one.job.folder.checkpoint.exists() for one in ready)
            raise Interrupted(again, folder, begun=begun) from None
    return [one.folder for one in ready]


def quiet_flower() -> None:
    """Flower's own chatter is for people who debug Flower."""
    logging.getLogger("flwr").setLevel(os.environ.get("BOUQUET_LOG", "WARNING"))


def _watchers(tensorboard: bool) -> "list[Watcher]":
    """Who watches each run, besides the person in front."""
    if not tensorboard:
        return []
    from bouquet.watch import tensorboard as files

    files.check_installed()
    return [files.tensorboard]


def _page(dashboard: bool, folder: Path) -> AbstractContextManager[None]:
    """The dashboard beside what runs in a folder, where it is asked for."""
    if not dashboard:
        return nullcontext()
    from bouquet.cli.display import err
    from bouquet.watch import companion

    # Where people look, not where programs read the result.
    return companion.dashboard(folder, lambda at: err.print(f"Watch at {at}", soft_wrap=True))
