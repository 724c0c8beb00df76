"""A SuperLink and its nodes as processes of this machine, which speak gRPC over TLS.

Every process is in a session of its own, so that whatever it started can be ended with it.
"""

import hashlib
import math
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bouquet.core.errors import RunFailed
from bouquet.deploy.addresses import HOST, Addresses, addresses
from bouquet.deploy.bundle import bundle
from bouquet.deploy.certificates import make_certificates, make_node_key
from bouquet.deploy.commands import (
    Host,
    link_command,
    link_environment,
    node_command,
    node_environment,
)
from bouquet.deploy.control import control, register
from bouquet.deploy.guard import control_token, guarded_port
from bouquet.deploy.processes import end, end_strays, free_port
from bouquet.flower.private import (
    ADMITTED,
    ControlHttpClient,
    Fab,
    ListRunsRequest,
    StartRunRequest,
    fab_to_proto,
    user_config_to_proto,
)
from bouquet.settings import Settings
from bouquet.storage.privacy import private_folder

# Seconds between two starts of a node, of which each is five of CPU: the SuperLink refuses one that
# was killed until a minute is over.
START_AGAIN = 10.0
LINK_ENDED = "the SuperLink ended with"


@dataclass
class Deployment:
    """A SuperLink and its nodes.

    Parameters
    ----------
    private : Path
        A folder that only its owner can read: keys, certificates, the SuperLink's database.
    logs : Path
        What every process says, a file each.
    in_memory : bool
        Whether the SuperLink has no database.
    """

    private: Path
    logs: Path
    in_memory: bool = False
    fleet: str = ""
    control: str = ""
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        if not (self.private / "ca.pem").exists():
            make_certificates(self.private, [HOST, "localhost"])
            here = addresses(f"{HOST}:{free_port()}", port=free_port())
            self.fleet, self.control = here.fleet, here.control
            control_token(self.private)
        command = link_command(self.private, Addresses(self.fleet, self.control), self.in_memory)
        home = self.private / "superlink"
        self.launch("superlink", command, link_environment(home, self.private))
        for address in (self.fleet, self.control):
            self._wait_for(address)

    def revive_link(self) -> None:
        """Start the SuperLink again if it has ended; its database has who was let in."""
        if self.processes["superlink"].poll() is not None:
            end_strays(self.private / "superlink")
            self.start_link()

    def start_node(self, host: Host) -> None:
        """Start a node, with a key that the SuperLink is told of the first time."""
        private_folder(host.folder)
        key = self.private / f"{host.name}.key"
        if not key.exists():
            make_node_key(key)
            self.register(key.with_name(f"{key.name}.pub"), host.clients)
        ca, home = self.private / "ca.pem", self.private / host.name
        guard = guarded_port(home / "port")
        command = node_command(host, self.fleet, ca, key, free_port(), guard)
        self.started[host.name] = time.monotonic()
        self.launch(host.name, command, node_environment(home, host.policy))

    def register(self, public_key: Path, clients: Sequence[str]) -> int:
        """Let the node with this key in, for its clients; returns Flower's id of the node."""
        with self.control_api() as client:
            return register(client, public_key, clients)

    def start_run(self, settings: Settings, app: bytes = b"") -> int:
        """Hand the app to the SuperLink, ours unless told; returns Flower's number of the run."""
        content = app or bundle()
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        keys = user_config_to_proto(dict(settings.flat()))
        with self.control_api() as client:
            request = StartRunRequest(fab=fab_to_proto(fab), override_config=keys)
            return int(client.StartRun(request).run_id)

    def ended(self, run: int) -> str | None:
        """How a run ended: empty for well, else why not; None if it goes on."""
        link = self.processes["superlink"]
        if link.poll() is not None:
            return f"{LINK_ENDED} {link.returncode}"
        try:
            with self.control_api() as client:
                status = client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        except RunFailed:
            if link.poll() is None:
                raise
            return f"{LINK_ENDED} {link.returncode}"  # while it was asked
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
        """Start a node that does not run; one that ended soon after its start, not at once."""
        if host.name in self.processes and self.processes[host.name].poll() is None:
            return
        if time.monotonic() > self.started.get(host.name, -math.inf) + START_AGAIN:
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
        nodes = [process for name, process in self.processes.items() if name != "superlink"]
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

    def control_api(self) -> AbstractContextManager[ControlHttpClient]:
        """The way to the SuperLink for its owner."""
        return control(self.control, self.private)

    def _wait_for(self, address: str) -> None:
        host, _, port = address.partition(":")
        limit = time.monotonic() + 60.0
        while True:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return
            if self.processes["superlink"].poll() is not None or time.monotonic() > limit:
                raise RunFailed(f"The SuperLink did not start; see {self.logs / 'superlink.log'}.")
            time.sleep(0.1)
