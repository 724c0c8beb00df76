"""Where a SuperLink listens, which depends on Flower's version; nothing else of ours does.

Up to 1.39 nodes speak gRPC to a port of their own. From 1.40 on they speak HTTP, to the port on
which runs are started too: ``--fleet-api-address`` is then ignored.
"""

from dataclasses import dataclass
from importlib.metadata import version

from bouquet.core.errors import BadInput

HOST = "127.0.0.1"
# The first version without a port for nodes alone.
ONE_PORT = (1, 40)


@dataclass(frozen=True)
class Addresses:
    """Where nodes connect, and where runs are started.

    Parameters
    ----------
    fleet, control : str
        The two addresses.
    """

    fleet: str
    control: str

    @property
    def words(self) -> list[str]:
        """What ``flower-superlink`` is told."""
        one = one_port()
        host, _, port = (self.fleet if one else self.control).rpartition(":")
        words = ["--host", host, "--port", port]
        return words if one else [*words, "--fleet-api-address", self.fleet]


def installed() -> tuple[int, int]:
    """The version of Flower that is installed here."""
    major, minor, *_ = version("flwr").split(".")
    return int(major), int(minor)


def one_port() -> bool:
    """Whether nodes and those who start runs use the same port."""
    return installed() >= ONE_PORT


def addresses(fleet: str, control: str = "", port: int = 8000) -> Addresses:
    """Both addresses, the second one on this machine alone where nobody says otherwise.

    Parameters
    ----------
    fleet : str
        Where nodes connect.
    control : str
        Where runs are started; empty for this machine's own address.
    port : int
        The port to start runs on, where they have their own.
    """
    if not one_port():
        return Addresses(fleet, control or f"{HOST}:{port}")
    shared = fleet.rpartition(":")[2]
    if control and control.rpartition(":")[2] != shared:
        raise BadInput(
            f"--control must be left out, not {control!r}: from Flower 1.40 on runs are started on "
            f"the nodes' port, {shared}."
        )
    return Addresses(fleet, control or f"{HOST}:{shared}")
