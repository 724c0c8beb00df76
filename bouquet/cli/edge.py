"""Commands for real machines: a SuperLink, nodes, and what a device has."""

import json
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.table import Table

node_app = typer.Typer(invoke_without_command=True)
StateDir = Annotated[Path, typer.Option(help="The device's folder.", metavar="DIR")]
ClientId = Annotated[str, typer.Option(help="The client's id.", metavar="ID")]


def superlink(
    folder: Annotated[
        Path, typer.Option(help="Certificates, the database and Flower's settings.", metavar="DIR")
    ],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="A name or address nodes know this machine by.", metavar="HOST"
        ),
    ] = None,
    fleet: Annotated[str, typer.Option(help="Where nodes connect.")] = "0.0.0.0:9092",
    control: Annotated[str, typer.Option(help="Where runs are started.")] = "127.0.0.1:8000",
    in_memory: Annotated[
        bool,
        typer.Option(
            "--in-memory", help="No database: more nodes, but keys are registered at every start."
        ),
    ] = False,
) -> None:
    """The server's half of a deployment: certificates the first time, then flower-superlink.

    Prints the command it runs. Nodes need DIR/ca.pem; flwr finds the SuperLink
    with FLWR_HOME=DIR/flower.

    [bold]Example[/bold]

      bouquet superlink --folder link --name server.example.org
    """
    from bouquet.core.errors import BadInput
    from bouquet.deploy.certificates import make_certificates
    from bouquet.deploy.commands import link_command, link_environment

    place = folder.absolute()
    if (place / "ca.pem").exists():
        if names:
            raise BadInput(f"--name: {folder} has certificates already; leave it out.")
    else:
        if not names:
            raise BadInput("--name must say how nodes reach this machine, to be certified.")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_certificates(place, [*names, "localhost", "127.0.0.1"])
    home = place / "flower"
    home.mkdir(exist_ok=True)
    connection = f'address = "{control}"\nroot-certificates = "{place / "ca.pem"}"\n'
    text = f'[superlink]\ndefault = "bouquet"\n\n[superlink.bouquet]\n{connection}'
    (home / "config.toml").write_text(text, "utf-8")
    _become(link_command(place, fleet, control, in_memory), link_environment(home))


@node_app.callback()
def node(
    context: typer.Context,
    superlink: Annotated[str, typer.Option(help="The SuperLink.", metavar="HOST:PORT")] = "",
    ca: Annotated[Path | None, typer.Option(help="Its ca.pem.", metavar="FILE")] = None,
    key: Annotated[Path | None, typer.Option(help="This node's key.", metavar="FILE")] = None,
    client_id: Annotated[
        str, typer.Option(help="Its client, or a gateway's, separated by commas.", metavar="ID")
    ] = "",
    state_dir: Annotated[
        Path | None, typer.Option(help="Where it keeps what is personal.", metavar="DIR")
    ] = None,
    data_path: Annotated[str, typer.Option(help="Its own data.", metavar="PATH")] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="A scheme or model of yours that a run may name; may be given many times.",
            metavar="PACKAGE.MODULE:NAME",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="Where it computes, whatever the server wishes.", metavar="cpu|cuda|mps"),
    ] = "",
    weights: Annotated[
        str, typer.Option(help="Its copy of a run's model.weights.", metavar="FILE")
    ] = "",
    state_recovery: Annotated[
        str,
        typer.Option(
            help="Where a client's newest state is damaged: stop, or repeat rounds from the last.",
            metavar="refuse|previous",
        ),
    ] = "refuse",
    port: Annotated[int, typer.Option(help="A free port of this machine.")] = 9094,
) -> None:
    r"""A device: its half of a deployment, what it stores, its personal model.

    Without a command it prints the flower-supernode command and runs it.

    [bold]Examples[/bold]

      bouquet node key north.key

      bouquet node --superlink HOST:9092 --ca ca.pem --key north.key \
      --client-id north --state-dir state --data-path shops

      bouquet node state --state-dir state
    """
    if context.invoked_subcommand is not None:
        return

    from bouquet.client_app.device import device as device_of
    from bouquet.core.errors import BadInput
    from bouquet.deploy.clock import check_clock
    from bouquet.deploy.commands import Host, node_command, node_environment

    if not superlink or ca is None or key is None or not client_id or state_dir is None:
        raise BadInput("node needs --superlink, --ca, --key, --client-id and --state-dir.")
    for name, file in (("--ca", ca), ("--key", key)):
        if not file.exists():
            raise BadInput(f"{name}: {file} is not there.")
    found = device_of(
        {"client-id": client_id, "state-dir": str(state_dir), "state-recovery": state_recovery}
    )
    assert found is not None  # it has a client-id
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    host = Host(
        "node",
        found.clients,
        state_dir,
        data_path,
        tuple(allow or ()),
        device,
        weights,
        "" if state_recovery == "refuse" else state_recovery,
    )
    home = state_dir.absolute() / "flower"
    check_clock(superlink, ca, key)
    command = node_command(host, superlink, ca.absolute(), key.absolute(), port)
    _become(command, node_environment(home))


@node_app.command("key")
def node_key(file: Annotated[Path, typer.Argument(help="The private key to make.")]) -> None:
    """Make a node's key. FILE.pub goes to whoever runs the SuperLink, FILE to nobody.

    [bold]Example[/bold]

      bouquet node key north.key
    """
    from bouquet.core.errors import BadInput
    from bouquet.deploy.certificates import make_node_key

    if file.exists():
        raise BadInput(f"{file} is there already.")
    make_node_key(file)
    typer.echo(f"{file}.pub")


@node_app.command("state")
def node_state(state_dir: StateDir) -> None:
    """What is stored on this device: personal state by run and client, two generations each.

    [bold]Example[/bold]

      bouquet node state --state-dir state
    """
    from bouquet.cli.display import out
    from bouquet.client_app.device import Device
    from bouquet.core.errors import BadInput

    runs = Device((), state_dir, "").runs
    files = sorted(runs.rglob("*.safetensors")) if runs.is_dir() else []
    if not files:
        raise BadInput(f"{state_dir} holds no personal state.")
    table, refused = _states(runs, files)
    out.print(table)
    for sentence in refused:
        print(f"bouquet: {sentence}", file=sys.stderr)
    if refused:
        raise typer.Exit(1)


@node_app.command("predict")
def node_predict(
    examples: Annotated[
        Path,
        typer.Argument(
            help="A .npz file with an array x, or a CSV file with the columns of inputs."
        ),
    ],
    state_dir: StateDir,
    client: ClientId,
) -> None:
    """Use the personal model on this device, with no server: a class's name, or values, a line.

    [bold]Example[/bold]

      bouquet node predict new.npz --state-dir state --client north
    """
    from bouquet.client_app.predictor import find_predictor, read_predictor
    from bouquet.data.folder import read_inputs

    predictor = read_predictor(find_predictor(state_dir, client))
    for line in predictor.words(read_inputs(examples, predictor.inputs)):
        typer.echo(line)


def export(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or a device's.", metavar="DIR")],
    client: ClientId,
    out: Annotated[Path, typer.Option(help="Where to write.", metavar="DIR")] = Path("."),
) -> None:
    """A client's own model for others: safetensors, and TorchScript where the model allows.

    Of any run, finished or stopped: what was not written with save-predictors
    is built from the run's folder, without training.

    [bold]Example[/bold]

      bouquet export runs/mine --client 003 --out model
    """
    from bouquet.client_app.predictor import export
    from bouquet.rebuild import predictor_of

    logging.getLogger("flwr").setLevel("ERROR")  # what it warns of is in our own sentence
    for file in export(predictor_of(folder, client), out):
        typer.echo(file)


def audit(
    folder: Annotated[
        Path, typer.Argument(help="A device's folder, or a deployment's run.", metavar="DIR")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="The record itself, with every tensor's hash.")
    ] = False,
) -> None:
    """What devices sent, by their own record: tensors, bytes, hashes, and if any was personal.

    [bold]Example[/bold]

      bouquet audit state
    """
    from bouquet.cli.display import out
    from bouquet.client_app.audit import read_records
    from bouquet.core.errors import BadInput

    devices = [folder, *sorted(folder.glob("devices/*"))]
    lines = [(place, run, one) for place in devices for run, one in read_records(place / "sent")]
    if not lines:
        raise BadInput(f"{folder} has no record of anything sent.")
    if as_json:
        for place, run, one in lines:
            typer.echo(json.dumps({"device": place.name, "run": run, **one}))
    else:
        out.print(_tensors([one for _, _, one in lines]))
        for name in dict.fromkeys(run for _, run, _ in lines):
            out.print(_sent(name, [(place.name, one) for place, run, one in lines if run == name]))
        for place in dict.fromkeys(place for place, _, _ in lines):
            typer.echo(_cost(place, [one for where, _, one in lines if where == place]))
    total = sum(one["bytes"] for _, _, one in lines)
    leaks = sum(bool(one["personal"]) for _, _, one in lines)
    words = "nothing the devices keep was in them" if not leaks else f"{leaks} had personal tensors"
    typer.echo(f"{len(lines)} replies, {total} bytes: {words}.", err=as_json)
    if leaks:
        raise typer.Exit(1)


Sent = dict[str, Any]


def _tensors(lines: list[Sent]) -> "Table":
    """Every tensor that was ever sent, once."""
    from rich.table import Table

    table = Table("tensor", "shape", "type", "bytes", "", header_style="bold")
    personal = {name for one in lines for name in one["personal"]}
    for name, part in {part["name"]: part for one in lines for part in one["arrays"]}.items():
        shape = "x".join(map(str, part["shape"])) or "number"
        mark = "PERSONAL" if name in personal else ""
        table.add_row(name, shape, part["dtype"], str(part["bytes"]), mark)
    return table


def _sent(run: str, lines: list[tuple[str, Sent]]) -> "Table":
    """A line for each reply in a run."""
    from rich.table import Table

    from bouquet.core.trees import digest

    headings = ("device", "kind", "round", "tensors", "bytes", "hash", "CPU s", "MB")
    table = Table(*headings, header_style="bold", title=f"run {run}", title_justify="left")
    for device, one in lines:
        arrays = one["arrays"]
        mark = digest([part["sha256"].encode() for part in arrays])[:8] if arrays else ""
        cost = (f"{one['cpu_seconds']:.1f}", f"{one['peak_memory'] / 1e6:.0f}")
        numbers = (str(one["round"]), str(len(arrays)), str(one["bytes"]))
        table.add_row(device, one["kind"], *numbers, mark, *cost)
    return table


def _cost(place: Path, lines: list[Sent]) -> str:
    """What a device spent."""
    rounds = max(1, len({one["round"] for one in lines if one["round"]}))
    seconds = sum(one["cpu_seconds"] for one in lines if one["round"]) / rounds
    memory = max(one["peak_memory"] for one in lines) / 1e6
    own = [path for path in place.rglob("*") if path.relative_to(place).parts[0] != "flower"]
    disk = sum(path.stat().st_size for path in own if path.is_file()) / 1e6
    return f"{place.name}: {seconds:.1f} CPU s a round, {memory:.0f} MB, {disk:.1f} MB on disk"


def _states(runs: Path, files: list[Path]) -> "tuple[Table, list[str]]":
    """A line for each file that is whole, and a sentence for each that is not."""
    from rich.table import Table

    from bouquet.client_app.stores import read_state
    from bouquet.core.trees import sha256
    from bouquet.storage.files import BadFile

    table, refused = Table(header_style="bold"), []
    for heading in ("client", "run", "scheme", "version", "round", "bytes", "checksum"):
        table.add_column(heading, overflow="fold")
    for file in files:
        try:
            state = read_state(file)
        except BadFile as error:
            refused.append(str(error))
            continue
        who, run = state.identity, str(file.parent.relative_to(runs))
        numbers = (str(who.version), str(state.round), str(file.stat().st_size))
        table.add_row(who.client, run, who.scheme, *numbers, sha256(state.tensors)[:12])
    return table, refused


def _become(command: list[str], words: dict[str, str]) -> NoReturn:
    """Print a command and run it in place of this process."""
    print(shlex.join(command), file=sys.stderr, flush=True)
    os.execvpe(command[0], command, words)
