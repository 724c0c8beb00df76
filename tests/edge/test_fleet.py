"""Runs over gRPC on real nodes: the bits of a simulation, and state that survives."""

from collections.abc import Callable

import pytest

from client_app.stores import read_state
from strategies.core.trees import sha256
from tests.conftest import Run
from tests.edge.conftest import Fleet

pytestmark = pytest.mark.edge
Inline = Callable[..., Run]


def test_fedavg_ends_with_the_bits_of_a_simulation(fleet: Fleet, inline: Inline) -> None:
    keys = {"scheme": "fedavg", "rounds": 3}
    there, here = fleet.start(**keys).finish(), inline(**keys)
    assert there.summary["engine"] == "grpc"
    assert there.sha == here.sha
    assert there.clients == here.clients


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


def test_state_survives_a_killed_node_and_the_run_goes_on(fleet: Fleet) -> None:
    """A node is killed with all it runs; restarted with its key, it takes part again."""
    going = fleet.start(scheme="apfl", rounds=3, round_timeout=25.0)
    going.wait_for_round(1)
    fleet.deployment.kill("node1")
    fleet.deployment.start_node(fleet.hosts[1])
    run = going.finish()
    assert all({"000", "002"} <= set(event["clients"]) for event in run.events)
    took_part = [event["round"] for event in run.events if "001" in event["clients"]]
    assert took_part[0] == 1
    assert took_part[-1] == 3
    assert read_state(fleet.states("001")[-1]).round == 3
    assert run.summary["failures"] == 3 - len(took_part)
