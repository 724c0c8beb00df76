"""Flower's commands for a SuperLink and for nodes, and what their processes need around them."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bouquet.deploy.preload import LIBRARIES

HOST = "127.0.0.1"


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
    computes_on : str
        The device it may compute on; empty for any.
    weights : str
        Its copy of the file that models' weights start from; empty where it has none.
    state_recovery : str
        What it does where a client's newest state is damaged; empty for refusing.
    """

    name: str
    clients: tuple[str, ...]
    folder: Path
    data_path: str = ""
    allowed: tuple[str, ...] = ()
    computes_on: str = ""
    weights: str = ""
    state_recovery: str = ""

    @property
    def node_config(self) -> str:
        """Flower's ``--node-config``."""
        words = {
            "client-id": ",".join(self.clients),
            "state-dir": str(self.folder.absolute()),
            "data.path": self.data_path and os.path.abspath(self.data_path),
            "allow": ",".join(self.allowed),
            "device": self.computes_on,
            "model.weights": self.weights and os.path.abspath(self.weights),
            "state-recovery": self.state_recovery,
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


def link_environment(home: Path) -> dict[str, str]:
    """The same for a SuperLink, whose command is ours."""
    return _with_own(home, "flower-superlink", "bouquet.deploy.link")


def node_environment(home: Path) -> dict[str, str]:
    """The same for a node, whose processes have imported what training needs when they start."""
    return _with_own(home, "flower-superexec", "bouquet.deploy.preload", list(LIBRARIES))


def _with_own(home: Path, command: str, module: str, *words: object) -> dict[str, str]:
    """An environment where a command of Flower's is a module's ``main``; it is written there."""
    folder = home / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / command
    # A fork reads this file too, without doing what it says.
    file.write_text(
        f"#!{sys.executable}\n"
        'if __name__ == "__main__":\n'
        f"    from {module} import main\n\n"
        f"    main({', '.join(map(repr, words))})\n",
        "utf-8",
    )
    file.chmod(0o700)
    found = environment(home)
    return found | {"PATH": f"{folder}{os.pathsep}{found['PATH']}"}


def link_command(folder: Path, fleet: str, control: str, in_memory: bool = False) -> list[str]:
    """How to start a SuperLink.

    Parameters
    ----------
    folder : Path
        With its certificates, and for its database.
    fleet, control : str
        Addresses for nodes, and for those who start runs.
    in_memory : bool
        Whether it forgets all when it ends, for a third of the work.
    """
    host, _, port = control.rpartition(":")
    command = ["flower-superlink", "--host", host, "--port", port, "--fleet-api-address", fleet]
    command += ["--enable-supernode-auth"]
    command += [] if in_memory else ["--database", str(folder / "superlink.db")]
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
