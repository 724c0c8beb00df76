"""A deployment on this machine: a SuperLink and SuperNodes that speak gRPC over TLS.

Every process is in a session of its own, so that whatever it started can be ended with it.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from bouquet.continuing import new_folder, resumed
from bouquet.core.errors import BadInput, RunFailed
from bouquet.data import load
from bouquet.deploy.certificates import make_certificates, make_node_key
from bouquet.deploy.preload import LIBRARIES, PARTITIONERS, install
from bouquet.flower.private import (
    ADMITTED,
    ControlHttpClient,
    Fab,
    ListRunsRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    build_fab_from_files,
    fab_to_proto,
    public_key_to_bytes,
    user_config_to_proto,
)
from bouquet.imports import named_paths
from bouquet.manifest import APP, BESIDE, PACKAGE, flower_app, manifest
from bouquet.server_app.loop import check_deployable
from bouquet.server_app.main import WRONG_INPUT
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies.registry import SCHEMES

HOST = "127.0.0.1"
Observer = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Host:
    """What a node is told about itself.

    Parameters
    ----------
    name : str
        For its key and its log.
    clients : tuple of str
        The clients that live there.
    folder : Path
        Where it keeps what is personal.
    data_path : str
        Its data; empty for data sets that need none.
    allowed : tuple of str
        Import paths of schemes and models that it may load, besides ours.
    """

    name: str
    clients: tuple[str, ...]
    folder: Path
    data_path: str = ""
    allowed: tuple[str, ...] = ()

    @property
    def node_config(self) -> str:
        """Flower's ``--node-config``."""
        words = {
            "client-id": ",".join(self.clients),
            "state-dir": str(self.folder.absolute()),
            "data.path": self.data_path and os.path.abspath(self.data_path),
            "allow": ",".join(self.allowed),
        }
        return " ".join(f"{name}={json.dumps(word)}" for name, word in words.items() if word)


def environment(home: Path) -> dict[str, str]:
    """What Flower's processes need to run offline, on our libraries, with a home of their own."""
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        # A look every second would be a good part of a short round.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        # So that the SuperLink's log has a line about those that do not speak TLS.
        "GRPC_VERBOSITY": "info",
        "PYTHONUNBUFFERED": "1",
    }


def node_environment(home: Path, host: Host) -> dict[str, str]:
    """The same for a node, whose processes have imported what training needs when they start."""
    words = environment(home)
    own = install(home / "bin", LIBRARIES if host.data_path else LIBRARIES + PARTITIONERS)
    return words | {"PATH": f"{own}{os.pathsep}{words['PATH']}"}


def link_command(folder: Path, fleet: str, control: str) -> list[str]:
    """How to start a SuperLink.

    Parameters
    ----------
    folder : Path
        With its certificates, and for its database.
    fleet, control : str
        Addresses for nodes, and for those who start runs.
    """
    host, _, port = control.rpartition(":")
    command = ["flower-superlink", "--host", host, "--port", port, "--fleet-api-address", fleet]
    command += ["--enable-supernode-auth", "--database", str(folder / "superlink.db")]
    command += ["--ssl-ca-certfile", str(folder / "ca.pem")]
    command += ["--ssl-certfile", str(folder / "server.pem")]
    return [*command, "--ssl-keyfile", str(folder / "server.key")]


def node_command(host: Host, superlink: str, ca: Path, key: Path, port: int) -> list[str]:
    """How to start a node.

    Parameters
    ----------
    host : Host
        What it is told about itself.
    superlink : str
        The SuperLink's address for nodes.
    ca, key : Path
        The authority to trust, and the node's private key.
    port : int
        On which the node talks to the app's processes, on its own machine.
    """
    command = ["flower-supernode", "--superlink", superlink, "--root-certificates", str(ca)]
    command += ["--auth-supernode-private-key", str(key), "--host", HOST, "--port", str(port)]
    return [*command, "--node-config", host.node_config]


def bundle() -> bytes:
    """The app as Flower sends it: the same bytes from a checkout and from an installed wheel.

    Flower's own collection looks at every file below, a virtual environment's too, for seconds.
    """
    files = {"pyproject.toml": manifest()}
    for pattern in flower_app()["fab-include"]:
        room, _, rest = pattern.partition("/")
        # A wheel has the folders that stand beside ours in a checkout inside it.
        folder = PACKAGE if room == PACKAGE.name else PACKAGE / room
        for path in (folder if folder.exists() else APP / room).glob(rest):
            name = path.relative_to(folder).as_posix()
            if room != PACKAGE.name or not name.startswith(BESIDE):
                files[f"{room}/{name}"] = path
    return build_fab_from_files(files)[0]


@dataclass
class Deployment:
    """A SuperLink and its nodes.

    Parameters
    ----------
    private : Path
        A folder that only its owner can read: keys, certificates, the SuperLink's database.
    logs : Path
        What every process says, a file each.
    """

    private: Path
    logs: Path
    fleet: str = ""
    control: str = ""
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        if not (self.private / "ca.pem").exists():
            make_certificates(self.private, [HOST, "localhost"])
            self.fleet, self.control = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"
        command = link_command(self.private, self.fleet, self.control)
        self.launch("superlink", command, environment(self.private / "superlink"))
        for address in (self.fleet, self.control):
            self._wait_for(address)

    def start_node(self, host: Host) -> None:
        """Start a node, with a key that the SuperLink is told of the first time."""
        host.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = self.private / f"{host.name}.key"
        if not key.exists():
            make_node_key(key)
            self.register(key.with_name(f"{key.name}.pub"))
        ca = self.private / "ca.pem"
        command = node_command(host, self.fleet, ca, key, free_port())
        self.launch(host.name, command, node_environment(self.private / host.name, host))

    def register(self, public_key: Path) -> None:
        """Let the node with this key in."""
        key: Any = load_ssh_public_key(public_key.read_bytes())
        with self._client() as client:
            client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key)))

    def start_run(self, settings: Settings) -> int:
        """Hand the app to the SuperLink; returns Flower's number of the run."""
        content = bundle()
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        keys = user_config_to_proto(dict(settings.flat()))
        with self._client() as client:
            request = StartRunRequest(fab=fab_to_proto(fab), override_config=keys)
            return int(client.StartRun(request).run_id)

    def ended(self, run: int) -> str | None:
        """How a run ended: empty for well, else why not; None if it goes on."""
        link = self.processes["superlink"]
        if link.poll() is not None:
            return f"the SuperLink ended with {link.returncode}"
        with self._client() as client:
            status = client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        if status.status != "finished":
            return None
        return "" if status.sub_status == "completed" else status.details or status.sub_status

    def launch(self, name: str, command: Sequence[str], words: Mapping[str, str]) -> None:
        """Start a process that writes to a log of its own."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with open(self.logs / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=words,
                cwd=self.private,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def admit(self, hosts: Sequence[Host]) -> None:
        """Start nodes, again where it must be, until the SuperLink lets them in.

        A SuperNode gives up when it starts slowly, as on a busy machine; and the key of one that
        was killed is refused until a minute after its last sign of life.
        """
        limit = time.monotonic() + 120.0
        known = {host: self._admissions(host) for host in hosts}
        while waiting := [host for host in hosts if self._admissions(host) == known[host]]:
            if time.monotonic() > limit:
                name = waiting[0].name
                raise RunFailed(f"{name} was not let in; see {self.logs / name}.log.")
            for host in waiting:
                self.keep_alive(host)
            time.sleep(0.2)

    def keep_alive(self, host: Host) -> None:
        """Start a node that does not run."""
        if host.name not in self.processes or self.processes[host.name].poll() is not None:
            self.start_node(host)

    def _admissions(self, host: Host) -> int:
        log = self.logs / f"{host.name}.log"
        return log.read_text("utf-8").count(ADMITTED) if log.exists() else 0

    def kill(self, name: str) -> None:
        """End a process and all it started, as a power cut would."""
        process = self.processes.pop(name)
        end(process, signal.SIGKILL)
        process.wait()
        end_strays(self.private / name)

    def stop(self) -> None:
        """End every process, gently first."""
        nodes = [one for name, one in self.processes.items() if name != "superlink"]
        for process in [*nodes, *self.processes.values()]:
            end(process, signal.SIGTERM)
        limit = time.monotonic() + 5.0
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, limit - time.monotonic()))
            end(process, signal.SIGKILL)
            process.wait()
        for name in self.processes:
            end_strays(self.private / name)
        self.processes.clear()

    @contextmanager
    def _client(self) -> Iterator[ControlHttpClient]:
        client = ControlHttpClient.from_server_address(
            self.control,
            insecure=False,
            root_certificates=(self.private / "ca.pem").read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            yield client
        except Exception as error:  # a refusal, or no answer at all
            raise RunFailed(f"The SuperLink does not do as asked: {error}") from error
        finally:
            client.close()

    def _wait_for(self, address: str) -> None:
        host, _, port = address.partition(":")
        limit = time.monotonic() + 60.0
        while True:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return
            if self.processes["superlink"].poll() is not None or time.monotonic() > limit:
                raise RunFailed(f"The SuperLink did not start; see {self.logs / 'superlink.log'}.")
            time.sleep(0.1)


def end(process: "subprocess.Popen[bytes]", how: signal.Signals) -> None:
    """Send a signal to a process and those it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def end_strays(home: Path) -> None:
    """Kill what a process of ours left behind, told by the home we gave it.

    Flower puts apps in sessions of their own, where they watch for their parent's end, but take
    a parent that nobody has buried for alive. Where there is no /proc, that watch must do.
    """
    mark = f"FLWR_HOME={home}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def free_port() -> int:
    """A port nobody uses."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def hosts_of(settings: Settings, folder: RunFolder) -> list[Host]:
    """Share out the clients as a simulation does: every n-th, so that nodes are alike.

    What stands for the devices' disks is in the key ``state-dir``, or in the run's folder.
    """
    clients = sorted(load(settings.data, settings.run.seed, settings.dtype).clients)
    nodes, disks = settings.run.nodes, disks_of(settings, folder)
    if nodes > len(clients):
        raise BadInput(
            f"--nodes must be at most {len(clients)}, the number of clients, not {nodes}."
        )
    names = [f"node{place:0{len(str(nodes - 1))}d}" for place in range(nodes)]
    # Who deploys on this machine owns the devices, too.
    schemes = [stage.scheme for stage in settings.stages if stage.scheme not in SCHEMES]
    parts = [name for _, name in named_paths(settings.flat())]
    named = tuple(dict.fromkeys([*schemes, *parts]))
    return [
        Host(name, tuple(clients[place::nodes]), disks / name, settings.data.path, named)
        for place, name in enumerate(names)
    ]


def disks_of(settings: Settings, folder: RunFolder) -> Path:
    """Where the nodes of a deployment on this machine keep what is personal."""
    return Path(settings.run.state_dir or folder.path / "devices")


def prepared(
    values: Mapping[str, object], nodes: int | None, resume: Path | None
) -> tuple[Settings, RunFolder]:
    """Settings and folder of a run to deploy, checked before anything is started.

    Parameters
    ----------
    values : mapping
        The user's keys.
    nodes : int, optional
        How many nodes; else as the key ``nodes`` says, or 3.
    resume : Path, optional
        The folder of a run to go on with.
    """
    told = dict(values) | ({} if nodes is None else {"nodes": nodes})
    if resume is not None:
        folder = RunFolder(resume)
        settings = resumed(folder, told)
        if not disks_of(settings, folder).is_dir():
            raise BadInput(f"--resume: {resume} holds no deployment's run; use bouquet simulate.")
    else:
        settings = parse(told)
        folder = new_folder(settings)
        settings = settings.with_run(nodes=settings.run.nodes or 3, out=str(folder.path.absolute()))
    check_deployable(settings)
    return settings, folder


def deploy(
    settings: Settings, folder: RunFolder, hosts: Sequence[Host], observe: Observer
) -> dict[str, Any]:
    """Start everything, run the app, stop everything; returns the run's summary."""
    logs, new = folder.path.absolute() / "logs", not folder.path.exists()
    try:
        with _ended_gently(), tempfile.TemporaryDirectory(prefix="bouquet-") as private:
            deployment = Deployment(Path(private), logs)
            try:
                deployment.start_link()
                deployment.admit(hosts)
                follow(deployment, deployment.start_run(settings), folder, observe, hosts)
            finally:
                deployment.stop()
    except BadInput:
        if new:  # a run that is refused leaves nothing behind
            shutil.rmtree(folder.path)
        raise
    return read_summary(folder)


@contextmanager
def _ended_gently() -> Iterator[None]:
    """Let ``kill`` end what was started, as Ctrl-C does."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def follow(
    deployment: Deployment,
    run: int,
    folder: RunFolder,
    observe: Observer,
    hosts: Sequence[Host] = (),
) -> None:
    """Pass on a run's rounds as they end, until it does; keep the nodes of ``hosts`` alive."""
    seen, reason = len(folder.read_events(sys.maxsize)), None
    while reason is None:
        time.sleep(1.0)
        reason = deployment.ended(run)
        events = folder.read_events(sys.maxsize)
        for event in events[seen:]:
            observe(event)
        seen = len(events)
        for host in hosts:
            deployment.keep_alive(host)
    if reason:
        why = reason.removeprefix("ServerApp failed with exception: ").rstrip(".")
        if WRONG_INPUT in why:
            raise BadInput(f"{why.partition(WRONG_INPUT)[2]}.")
        raise RunFailed(f"{why}; see {deployment.logs}.")


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """How a run ended."""
    path = folder.path / "summary.json"
    if not path.exists():
        raise RunFailed(f"The run ended without a result; see {folder.path / 'logs'}.")
    summary: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return summary
