"""Flower's commands for a SuperLink and for nodes, and what their processes need around them."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bouquet.deploy.addresses import HOST, Addresses
from bouquet.deploy.guard import TOKEN, certificate_words, guarded_link
from bouquet.deploy.stand_ins import install_for_link, install_for_node


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
    policy : str
        Its owner's other rules; empty for the default ones.
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
    policy: str = ""
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
            "policy": self.policy and os.path.abspath(self.policy),
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


def node_environment(home: Path, policy: str = "") -> dict[str, str]:
    """The same for a node: its processes answer with the installed app, and have imported it."""
    return _with_commands(
        environment(home), install_for_node(home / "bin", policy and os.path.abspath(policy))
    )


def link_environment(home: Path, folder: Path) -> dict[str, str]:
    """The same for a SuperLink, which obeys whoever shows the token in its folder."""
    return _with_commands(environment(home), install_for_link(home / "bin", folder / TOKEN))


def _with_commands(words: dict[str, str], folder: Path) -> dict[str, str]:
    return words | {"PATH": f"{folder}{os.pathsep}{words['PATH']}"}


def link_command(folder: Path, listens: Addresses, in_memory: bool = False) -> list[str]:
    """How to start a SuperLink.

    Parameters
    ----------
    folder : Path
        With its certificates, for its database and for a secret that is made anew.
    listens : Addresses
        For nodes, and for those who start runs.
    in_memory : bool
        Whether it forgets all when it ends, for a third of the work.
    """
    command = ["flower-superlink", *listens.words]
    command += ["--enable-supernode-auth"]
    command += [] if in_memory else ["--database", str(folder / "superlink.db")]
    return [*command, *guarded_link(folder), *certificate_words(folder)]


def node_command(
    host: Host, superlink: str, ca: Path, key: Path, port: int, guard: Sequence[str] = ()
) -> list[str]:
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
    guard : sequence of str
        What keeps others away from that port; see :func:`bouquet.deploy.guard.guarded_port`.
    """
    command = ["flower-supernode", "--superlink", superlink, "--root-certificates", str(ca)]
    command += ["--auth-supernode-private-key", str(key), "--host", HOST, "--port", str(port)]
    return [*command, *guard, "--node-config", host.node_config]
