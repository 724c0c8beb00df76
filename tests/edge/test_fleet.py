"""Runs over gRPC on real nodes: the bits of a simulation, and state that survives."""

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bouquet.certificates import make_certificates, make_node_key
from bouquet.deployment import ADMITTED, Host, free_port, node_command
from client_app.stores import read_state
from strategies.core.trees import sha256
from tests.conftest import Run
from tests.edge.conftest import Fleet

pytestmark = pytest.mark.edge
Inline = Callable[..., Run]


def test_fedavg_ends_with_the_bits_of_a_simulation_whoever_knocks(
    fleet: Fleet, inline: Inline, tmp_path: Path
) -> None:
    """Refused: an unknown key, no key, plain text, and a node that trusts another authority."""
    keys = {"scheme": "fedavg", "rounds": 3}
    going, link = fleet.start(**keys), fleet.deployment
    strangers = commands_of_strangers(fleet, tmp_path)
    for name, words in strangers.items():
        link.launch(name, words)
        with suppress(subprocess.TimeoutExpired):  # one that speaks plain text tries for ever
            link.processes[name].wait(15)
    there, here = going.finish(), inline(**keys)
    assert there.summary["engine"] == "grpc"
    assert there.sha == here.sha
    assert there.clients == here.clients
    for name in strangers:
        link.kill(name)
        said = (link.logs / f"{name}.log").read_text()
        assert "Starting Flower SuperNode" in said
        assert ADMITTED not in said
    server = (link.logs / "superlink.log").read_text()
    assert "/flwr.proto.Fleet/ActivateNode][ApiError:2004]" in server
    assert "/flwr.proto.Fleet/RegisterNode][ApiError:2001]" in server


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
    for host, client in zip(fleet.hosts, ("000", "001", "002"), strict=True):
        kept, simulated = (
            read_state(path)
            for path in (fleet.states(client)[0], here.path / "state" / f"{client}.safetensors")
        )
        assert (kept.round, sha256(kept.tensors)) == (3, sha256(simulated.tensors))
        assert kept.identity == simulated.identity
        assert (host.folder / "predictors" / f"{client}.safetensors").exists()
    # What is personal is nowhere but on the devices.
    assert not (there.path / "state").exists()
    assert not (there.path / "predictors").exists()
    assert "alpha" not in there.clients[0]


def test_state_survives_a_killed_node_and_the_run_goes_on(fleet: Fleet, inline: Inline) -> None:
    """A node is killed with all it runs; restarted with its key, it takes part again.

    A message it had not fetched may wait for it. One it had is lost, and so are those of the
    minute in which the SuperLink finds out that it is gone and refuses its key.
    """
    going = fleet.start(scheme="apfl", rounds=5, round_timeout=80.0)
    going.wait_for_round(1)
    fleet.deployment.kill("node1")
    fleet.deployment.admit(fleet.hosts[1])
    run = going.finish()
    assert all({"000", "002"} <= set(event["clients"]) for event in run.events)
    took_part = [event["round"] for event in run.events if "001" in event["clients"]]
    assert took_part[0] == 1
    assert took_part[-1] == 5
    assert read_state(fleet.states("001")[-1]).round == 5
    assert run.summary["failures"] == 5 - len(took_part)
    if not run.summary["failures"]:
        assert run.sha == inline(scheme="apfl", rounds=5).sha
