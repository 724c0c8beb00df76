"""Runs over gRPC on real nodes: who is let in, and the bits of a simulation."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from bouquet.core.errors import BadInput
from bouquet.deploy.certificates import make_certificates, make_node_key
from bouquet.deploy.clock import check_clock
from bouquet.deploy.commands import Host, environment, node_command
from bouquet.deploy.processes import free_port
from bouquet.flower.private import ADMITTED
from tests.conftest import Run
from tests.edge.conftest import Fleet, states

pytestmark = pytest.mark.edge
NODES = 3
Inline = Callable[..., Run]


# Whose log says what of each. A node that trusts another authority is the one that refuses:
# it hangs up in the middle of the handshake, which gRPC's server does not think worth a line.
REFUSALS = {
    "unknown": ("superlink", "/flwr.proto.Fleet/ActivateNode][ApiError:2004]"),
    "keyless": ("superlink", "/flwr.proto.Fleet/RegisterNode][ApiError:2001]"),
    "plain": ("superlink", "Handshake failed"),
    "another": ("another", "Connection attempt failed"),
}


def test_fedavg_ends_with_the_bits_of_a_simulation_whoever_knocks(
    fleet: Fleet, inline: Inline, tmp_path: Path
) -> None:
    """Refused: an unknown key, no key, plain text, and a node that trusts another authority."""
    keys = {"scheme": "fedavg", "rounds": 3}
    going, link = fleet.start(**keys), fleet.deployment
    for name, words in commands_of_strangers(fleet, tmp_path).items():
        who, line = REFUSALS[name]
        log, deadline = link.logs / f"{who}.log", time.monotonic() + 60
        before = len(log.read_text()) if log.exists() else 0
        link.launch(name, words, environment(link.private / name))
        while line not in log.read_text()[before:]:
            assert time.monotonic() < deadline, name
            time.sleep(0.1)
        link.kill(name)
        said = (link.logs / f"{name}.log").read_text()
        assert "Starting Flower SuperNode" in said
        assert ADMITTED not in said
    there, here = going.finish(), inline(**keys)
    assert there.summary["engine"] == "grpc"
    assert there.sha == here.sha
    assert there.clients == here.clients


@pytest.mark.parametrize(
    ("off", "words"),
    [(0, ""), (12, "ahead of"), (400, "minutes away from"), (-400, "minutes away from")],
)
def test_a_clock_that_is_wrong_is_named(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: int, words: str
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return cls.fromtimestamp(time.time() + off, tz)

    monkeypatch.setattr("bouquet.deploy.clock.datetime", Clock)
    make_node_key(tmp_path / "key")
    link = fleet.deployment
    with pytest.raises(BadInput, match=f"is {words} the SuperLink") if off else nullcontext():
        check_clock(link.fleet, link.private / "ca.pem", tmp_path / "key")


def commands_of_strangers(fleet: Fleet, folder: Path) -> dict[str, list[str]]:
    make_node_key(folder / "key")
    make_certificates(folder, ["127.0.0.1"])
    link, stranger = fleet.deployment, Host("stranger", ("999",), folder / "state")

    def command(ca: Path) -> list[str]:
        return node_command(stranger, link.fleet, ca, folder / "key", free_port())

    keyless = without(command(link.private / "ca.pem"), "--auth-supernode-private-key")
    return {
        "unknown": command(link.private / "ca.pem"),
        "another": command(folder / "ca.pem"),
        "keyless": keyless,
        "plain": [*without(keyless, "--root-certificates"), "--insecure"],
    }


def without(command: list[str], option: str) -> list[str]:
    """A command less an option and its value."""
    place = command.index(option)
    return command[:place] + command[place + 2 :]


def test_apfl_ends_with_the_bits_of_a_simulation_on_the_devices_too(
    fleet: Fleet, inline: Inline
) -> None:
    keys = {"scheme": "apfl", "rounds": 3, "save_predictors": True}
    there, here = fleet.start(**keys).finish(), inline(**keys)
    assert there.sha == here.sha
    assert len(states(here.path / "state")) == 3
    assert fleet.states(there) == states(here.path / "state")
    for host in fleet.hosts:
        assert len(list(host.folder.glob("predictors/*.safetensors"))) == len(host.clients)
    # What is personal is nowhere but on the devices.
    assert not (there.path / "state").exists()
    assert not (there.path / "predictors").exists()
    assert "alpha" not in there.clients[0]
