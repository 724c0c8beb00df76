"""Runs over gRPC on real nodes: who is let in, and the bits of a simulation."""

import io
import time
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from bouquet.core.errors import BadInput, RunFailed
from bouquet.deploy.addresses import HOST
from bouquet.deploy.bundle import bundle
from bouquet.deploy.certificates import make_certificates, make_node_key
from bouquet.deploy.clock import check_clock
from bouquet.deploy.commands import Host, environment, node_command
from bouquet.deploy.control import nodes, register, revoke, rotate
from bouquet.deploy.deployment import pass_on_rounds
from bouquet.deploy.processes import free_port
from bouquet.deploy.superlink import Deployment
from bouquet.flower.private import (
    ADMITTED,
    AcquireTaskRequest,
    ControlHttpClient,
    ListRunsRequest,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    build_fab_from_files,
)
from bouquet.storage.runfolder import RunFolder
from tests.conftest import Run
from tests.edge.conftest import Fleet, settings_of, states

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
    """Refused: an unknown key, no key, plain text, and a node that trusts another authority.

    A node with a key of its own that says it is another's client is let in, and left out.
    """
    keys, link = {"scheme": "fedavg", "rounds": 3}, fleet.deployment
    impostor = Host("impostor", ("001",), tmp_path / "impostor")
    make_node_key(link.private / "impostor.key")
    number = link.register(link.private / "impostor.key.pub", ["999"])
    link.admit([impostor])
    going = fleet.start(**keys)
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
    refused = [one for event in there.events for one in event.get("left_out", [])]
    assert {(one["node"], *one["clients"]) for one in refused} == {(str(number), "999")}
    assert "001, which its key is not registered for" in refused[0]["reason"].replace("'", "")
    with link.control_api() as client:
        known = {one.clients: one for one in nodes(client)}
        assert len(known) == 4
        assert {one.status for one in known.values()} == {"online"}
        assert all(one.seen is not None for one in known.values())
        assert revoke(client, link.private / "impostor.key.pub").node == number
        assert [one.status for one in nodes(client) if one.node == number] == ["unregistered"]
        with pytest.raises(BadInput, match=r"001 belongs to the key SHA256:"):
            register(client, tmp_path / "key.pub", ["001"])
    link.kill("impostor")
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


def test_what_others_send_or_ask_for_runs_nowhere(fleet: Fleet, tmp_path: Path) -> None:
    """A bundle of other code on devices, a run without the token, a task without the secret."""
    link, mark = fleet.deployment, tmp_path / "imported"
    with zipfile.ZipFile(io.BytesIO(bundle())) as app:
        files = {name: app.read(name) for name in app.namelist()}
    del files[".info/CONTENT"]
    files["client_app/__init__.py"] += f"\nopen({str(mark)!r}, 'w')\n".encode()
    folder = RunFolder(tmp_path / "run")
    settings = settings_of(scheme="fedavg", rounds=1, out=str(folder.path), min_clients=3)
    number = link.start_run(settings, build_fab_from_files(files)[0])
    words = "is not the one installed on this device"
    with pytest.raises(RunFailed, match=words):
        pass_on_rounds(link, number, folder, lambda event: None)
    assert not mark.exists()
    assert [words in (link.logs / f"{host.name}.log").read_text() for host in fleet.hosts] == [
        True
    ] * len(fleet.hosts)
    assert not list(link.private.glob("node*/apps"))  # nor is it unpacked
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    local = [link.private / host.name / "port" / "ca.pem" for host in fleet.hosts]
    for address, ca, kind, ask in [
        (link.control, link.private / "ca.pem", ControlHttpClient, ask_for_runs),
        (link.control, link.private / "ca.pem", RuntimeHttpClient, ask_for_work),
        (port_of(link, fleet.hosts[0]), local[0], RuntimeHttpClient, ask_for_work),
    ]:
        client = kind.from_server_address(
            address, insecure=False, root_certificates=ca.read_bytes(), interceptors=[version]
        )
        with pytest.raises(Exception, match="401"):
            ask(client)
        client.close()


def ask_for_runs(client: Any) -> None:
    client.ListRuns(ListRunsRequest())


def ask_for_work(client: Any) -> None:
    client.AcquireTask(AcquireTaskRequest())


def port_of(link: Deployment, host: Host) -> str:
    words = link.processes[host.name].args
    assert isinstance(words, list)
    return f"{HOST}:{words[words.index('--port') + 1]}"


def without(command: list[str], option: str) -> list[str]:
    """A command less an option and its value."""
    place = command.index(option)
    return command[:place] + command[place + 2 :]


def test_apfl_ends_with_the_bits_of_a_simulation_on_the_devices_too(
    fleet: Fleet, inline: Inline
) -> None:
    """With another key for one of them, put in the place of the first."""
    link, host = fleet.deployment, fleet.hosts[0]
    link.kill(host.name)
    key = link.private / f"{host.name}.key"
    for one in (key, key.with_name(f"{key.name}.pub")):
        one.rename(one.with_name(f"old-{one.name}"))
    make_node_key(key)
    with link.control_api() as client:
        rotate(client, link.private / f"old-{key.name}.pub", link.private / f"{key.name}.pub")
    link.admit([host])
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
