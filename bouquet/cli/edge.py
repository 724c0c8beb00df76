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

superlink_app = typer.Typer(invoke_without_command=True)
node_app = typer.Typer(invoke_without_command=True)
LinkFolder = Annotated[Path, typer.Option(help="The SuperLink's folder.", metavar="DIR")]
PublicKey = Annotated[Path, typer.Argument(help="A node's public key, such as north.key.pub.")]
LINK = Path("link")
StateDir = Annotated[Path, typer.Option(help="The device's folder.", metavar="DIR")]
ClientId = Annotated[str, typer.Option(help="The client's id.", metavar="ID")]


@superlink_app.callback()
def superlink(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(help="Certificates, the database and Flower's settings.", metavar="DIR"),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="A name or address nodes know this machine by.", metavar="HOST"
        ),
    ] = None,
    fleet: Annotated[str, typer.Option(help="Where nodes connect.")] = "0.0.0.0:9092",
    control: Annotated[
        str,
        typer.Option(
            help="Where runs are started; 127.0.0.1:8000, or from Flower 1.40 on where nodes "
            "connect.",
            show_default=False,
        ),
    ] = "",
    in_memory: Annotated[
        bool,
        typer.Option(
            "--in-memory", help="No database: more nodes, but keys are registered at every start."
        ),
    ] = False,
) -> None:
    """The server's half of a deployment: certificates, flower-superlink, and who is let in.

    Without a command it prints the flower-superlink command and runs it. Nodes
    need DIR/ca.pem; flwr finds the SuperLink with FLWR_HOME=DIR/flower.

    [bold]Examples[/bold]

      bouquet superlink --folder link --name server.example.org

      bouquet superlink register north.key.pub --clients north --folder link
    """
    if context.invoked_subcommand is not None:
        return

    from bouquet.core.errors import BadInput
    from bouquet.deploy.addresses import addresses
    from bouquet.deploy.certificates import make_certificates
    from bouquet.deploy.commands import link_command, link_environment
    from bouquet.deploy.guard import control_token, hand_over, reached_at
    from bouquet.storage.privacy import keep_to_owner, private_folder

    if folder is None:
        raise BadInput("superlink needs --folder.")
    place, listens = folder.absolute(), addresses(fleet, control)
    if (place / "ca.pem").exists():
        if names:
            raise BadInput(f"--name: {folder} has certificates already; leave it out.")
    else:
        if not names:
            raise BadInput("--name must say how nodes reach this machine, to be certified.")
        private_folder(place)
        make_certificates(place, [*names, "localhost", "127.0.0.1"])
    keep_to_owner()
    home = private_folder(private_folder(place) / "flower")
    address = reached_at(listens.control)
    connection = f'address = "{address}"\nroot-certificates = "{place / "ca.pem"}"\n'
    text = f'[superlink]\ndefault = "bouquet"\n\n[superlink.bouquet]\n{connection}'
    (home / "config.toml").write_text(text, "utf-8")
    hand_over(control_token(place), home, address)
    _become(link_command(place, listens, in_memory), link_environment(home, place))


@superlink_app.command("register")
def superlink_register(
    key: PublicKey,
    clients: Annotated[
        str, typer.Option(help="The clients it is for, separated by commas.", metavar="IDS")
    ],
    folder: LinkFolder = LINK,
) -> None:
    """Let a node's key in, for its clients and nobody else's. The SuperLink must run.

    [bold]Example[/bold]

      bouquet superlink register north.key.pub --clients north --folder link
    """
    from bouquet.bound import ids_in
    from bouquet.deploy.control import control_of, register

    wanted = ids_in(clients, "--clients")
    with control_of(folder) as client:
        typer.echo(register(client, key, wanted))


@superlink_app.command("nodes")
def superlink_nodes(folder: LinkFolder = LINK) -> None:
    """Who is let in: each key's clients and fingerprint, its node's last contact and version.

    [bold]Example[/bold]

      bouquet superlink nodes --folder link
    """
    from rich.table import Table

    from bouquet.cli.display import out
    from bouquet.deploy.control import control_of, nodes
    from bouquet.deploy.versions import versions

    table, runs = Table(header_style="bold"), versions(folder)
    for heading in ("clients", "status", "last contact", "version", "node", "key"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("status", "version"))
    with control_of(folder) as client:
        for one in nodes(client):
            seen = "never" if one.seen is None else f"{one.seen:%Y-%m-%d %H:%M} UTC"
            clients = ", ".join(one.clients) or "any that are nobody's"
            version = runs.get(one.node) or "–"
            table.add_row(clients, one.status, seen, version, str(one.node), one.fingerprint)
    out.print(table)


@superlink_app.command("revoke")
def superlink_revoke(key: PublicKey, folder: LinkFolder = LINK) -> None:
    """Let a key in no more. Its node is sent away at once; its clients are free for another key.

    [bold]Example[/bold]

      bouquet superlink revoke north.key.pub --folder link
    """
    from bouquet.deploy.control import control_of, revoke

    with control_of(folder) as client:
        typer.echo(", ".join(revoke(client, key).clients))


@superlink_app.command("rotate")
def superlink_rotate(
    old: PublicKey,
    new: Annotated[Path, typer.Argument(help="The public key that takes its place.")],
    folder: LinkFolder = LINK,
) -> None:
    """Put a new key in the place of another. The device keeps its state and starts with the new.

    [bold]Example[/bold]

      bouquet superlink rotate north.key.pub north2.key.pub --folder link
    """
    from bouquet.deploy.control import control_of, rotate

    with control_of(folder) as client:
        typer.echo(rotate(client, old, new))


@superlink_app.command("renew")
def superlink_renew(
    folder: LinkFolder = LINK,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Other names than it has.", metavar="HOST"),
    ] = None,
    ca_key: Annotated[
        Path | None,
        typer.Option(help="The authority's key, if it is not in DIR.", metavar="FILE"),
    ] = None,
) -> None:
    """Make a new server certificate of the same authority: devices keep their ca.pem.

    It counts from the SuperLink's next start.

    [bold]Example[/bold]

      bouquet superlink renew --folder link
    """
    from bouquet.core.errors import BadInput
    from bouquet.deploy.certificates import renew

    if not (folder / "ca.pem").exists():
        raise BadInput(f"--folder: {folder} holds no certificates; bouquet superlink makes them.")
    here = ["localhost", "127.0.0.1"] if names else []
    for name in renew(folder, [*(names or ()), *here], ca_key or folder / "ca.key"):
        typer.echo(name)


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
    policy: Annotated[
        str, typer.Option(help="What servers may have it do: its owner's rules.", metavar="FILE")
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
    from bouquet.deploy.guard import guarded_port
    from bouquet.storage.privacy import keep_to_owner, private_folder

    if not superlink or ca is None or key is None or not client_id or state_dir is None:
        raise BadInput("node needs --superlink, --ca, --key, --client-id and --state-dir.")
    for name, file in (("--ca", ca), ("--key", key)):
        if not file.exists():
            raise BadInput(f"{name}: {file} is not there.")
    own = {"policy": policy, "state-recovery": state_recovery}
    found = device_of({"client-id": client_id, "state-dir": str(state_dir), **own})
    assert found is not None  # it has a client-id
    keep_to_owner()
    private_folder(state_dir)
    host = Host(
        "node",
        found.clients,
        state_dir,
        data_path,
        tuple(allow or ()),
        device,
        weights,
        policy,
        "" if state_recovery == "refuse" else state_recovery,
    )
    home = private_folder(state_dir.absolute() / "flower")
    check_clock(superlink, ca, key)
    guard = guarded_port(home / "port")
    command = node_command(host, superlink, ca.absolute(), key.absolute(), port, guard)
    _become(command, node_environment(home, policy))


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


@node_app.command("policy")
def node_policy(
    file: Annotated[str, typer.Argument(help="The owner's rules.", metavar="[FILE]")] = "",
) -> None:
    """What servers may have a device do, by a file or by default, and which app is installed.

    [bold]Example[/bold]

      bouquet node policy policy.toml
    """
    from rich.table import Table

    from bouquet.cli.display import out
    from bouquet.client_app.policy import Policy, read_policy
    from bouquet.core.config import keys_of
    from bouquet.deploy.bundle import installed_fingerprint

    policy = read_policy(file)
    table = Table("key", "value", "meaning", header_style="bold")
    for one in keys_of(Policy):
        value = json.dumps(getattr(policy, one.field))
        table.add_row(one.name, value, one.doc)
    out.print(table)
    typer.echo(f"The installed app is {installed_fingerprint()}.")


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
    """What devices sent, by their own record: every field, and what a server can make of it.

    Exits with 1 if a tensor, or a row of one, was something the device keeps.

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
        out.print(_others([one for _, _, one in lines]))
        for name in dict.fromkeys(run for _, run, _ in lines):
            out.print(_sent(name, [(place.name, one) for place, run, one in lines if run == name]))
        for place in dict.fromkeys(place for place, _, _ in lines):
            typer.echo(_cost(place, [one for where, _, one in lines if where == place]))
    for sentence in _inferences([one for _, _, one in lines]):
        typer.echo(sentence, err=as_json)
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


def _others(lines: list[Sent]) -> "Table":
    """Every other field that was ever sent, once, with what it last was."""
    from rich.markup import escape
    from rich.table import Table

    from bouquet.client_app.audit import other_fields

    table = Table("field", "sent with", "last", header_style="bold")
    kinds: dict[str, dict[str, None]] = {}
    last: dict[str, Any] = {}
    for one in lines:
        for name, value in other_fields(one).items():
            kinds.setdefault(name, {})[one["kind"]] = None
            last[name] = value
    for name, value in last.items():
        said = json.dumps(value, ensure_ascii=False)
        short = said if len(said) <= 60 else f"{said[:60]} ..."
        table.add_row(escape(name), ", ".join(kinds[name]), escape(short))
    return table


def _inferences(lines: list[Sent]) -> list[str]:
    """What a server can compute from what was sent, by scheme; and who says so."""
    from bouquet.client_app.audit import SENT

    trained = [one for one in lines if one.get("scheme") and one["kind"] == "train"]
    sentences = []
    for scheme in dict.fromkeys(one["scheme"] for one in trained):
        own = [one for one in trained if one["scheme"] == scheme]
        alone = any(len(one["clients"]) == 1 for one in own)
        derivable = own[-1]["derivable"]
        if derivable and alone:
            said = f"a server can compute from these: {derivable}"
        elif derivable:
            said = f"hidden in sums over several clients: {derivable}"
        else:
            said = "nothing of what a client keeps is known to follow from these"
        sentences.append(f"{scheme}: {said}.")
    if any(one.get("code") == SENT for one in lines):
        sentences.append(
            "Code that came with the run wrote this record, not what is installed on the device."
        )
    return sentences


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
