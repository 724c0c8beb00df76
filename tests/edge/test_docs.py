"""docs/deploy.md's commands as they stand, on three machines that are network namespaces."""

import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from bouquet.deploy.bundle import bundle
from bouquet.deploy.processes import end_strays
from tests.engines.test_commands import ROOT

pytestmark = [
    pytest.mark.edge,
    pytest.mark.skipif(
        shutil.which("ip") is None or os.geteuid() != 0, reason="makes network namespaces"
    ),
]
ADDRESS = "10.77.0.{}"


def command(start: str) -> str:
    """The command in the guide that starts with some words, with the lines that continue it."""
    text = (ROOT / "docs/deploy.md").read_text("utf-8")
    (found,) = re.findall(rf"^{re.escape(start)}.*(?:\n +.*)*", text, re.MULTILINE)
    return str(found).partition("  #")[0]


@dataclass
class Machine:
    """A network namespace with a folder to work in."""

    name: str
    folder: Path
    running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def _words(self, line: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, "bash", "-c", f"exec {line}"]

    def run(self, line: str) -> str:
        """What a command says that must succeed."""
        done = subprocess.run(
            self._words(line),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def start(self, line: str) -> Path:
        """Start a service; returns where it writes."""
        log = self.folder / "log"
        with open(log, "ab") as file:
            self.running.append(
                subprocess.Popen(
                    self._words(line),
                    cwd=self.folder,
                    env=self.environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """A server and two devices on one network, which no other machine is on."""
    mark = f"bq{os.getpid()}"
    names = {who: f"{mark}-{who}" for who in ("server", "north", "south")}
    try:
        for place, (who, name) in enumerate(names.items(), start=1):
            ip(f"netns add {name}")
            ip(f"-n {name} link set lo up")
            if who == "server":
                ip(f"-n {name} link add net type bridge")
                ip(f"-n {name} link set net up")
            else:
                ip(f"-n {name} link add net type veth peer name to{place} netns {names['server']}")
                ip(f"-n {names['server']} link set to{place} master net up")
                ip(f"-n {name} link set net up")
            ip(f"-n {name} address add {ADDRESS.format(place)}/24 dev net")
        made = {who: Machine(name, tmp_path / who) for who, name in names.items()}
        for machine in made.values():
            machine.folder.mkdir()
        yield made
        for machine in made.values():
            for process in machine.running:
                process.terminate()
    finally:
        for home in (tmp_path / "server/link/flower", *tmp_path.glob("*/state/flower")):
            end_strays(home)
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def says(log: Path, words: str) -> bool:
    return words in log.read_text()


def shop(folder: Path, name: str) -> None:
    """A client's data, as docs/data.md has them."""
    rng = np.random.default_rng(len(name))
    (folder / "shops" / name).mkdir(parents=True)
    y = rng.integers(0, 2, 60)
    x = rng.normal(y[:, None], 0.5, (60, 4)).astype("float32")
    np.savez(folder / "shops" / name / "sales.npz", x=x, y=y)
    (folder / "shops/classes.txt").write_text("bread\nbutter\n")


def test_the_guide_leads_from_bare_machines_to_a_personal_model(
    machines: dict[str, Machine],
) -> None:
    server, north, south = machines.values()
    with zipfile.ZipFile(io.BytesIO(bundle())) as app:
        app.extractall(server.folder)
    host = ADDRESS.format(1)
    log = server.start(command("bouquet superlink --folder").replace("HOST", host))
    until(lambda: "Uvicorn running" in log.read_text())
    assert "flower-superlink --host 127.0.0.1" in log.read_text()
    for device, clients in ((north, "north"), (south, "south,west")):
        name = clients.partition(",")[0]
        for client in clients.split(","):
            shop(device.folder, client)
        shutil.copy(server.folder / "link/ca.pem", device.folder)
        device.run(command("bouquet node key").replace("north", name))
        shutil.copy(device.folder / f"{name}.key.pub", server.folder)
        register = command("bouquet superlink register").replace(
            "clients north", f"clients {clients}"
        )
        server.run(register.replace("north.", f"{name}."))
        started = command("bouquet node --superlink").replace("HOST", host)
        started = started.replace("client-id north", f"client-id {clients}").replace(
            "north.", f"{name}."
        )
        said = device.start(started)
        until(functools.partial(says, said, "SuperNode ID"))
        assert "flower-supernode" in said.read_text()
    exports, run = command("export FLWR_HOME").splitlines()[0], command("flwr run")
    run = " ".join(run.split()).replace("/srv/run", str(server.folder / "run"))
    server.run(f"bash -c {json.dumps(exports + ' && ' + run)}")
    summary = json.loads((server.folder / "run/summary.json").read_text())
    assert (summary["engine"], summary["clients"], summary["rounds"]) == ("grpc", 3, 3)
    assert summary["failures"] == 0
    known = server.run("bouquet superlink nodes --folder link")
    assert known.count("online") == 2
    assert known.count(version("bouquet")) == 2
    assert "west" in known
    # Without the server:
    for process in server.running:
        process.terminate()
    assert "north" in north.run(command("bouquet node state"))
    np.savez(north.folder / "new.npz", x=np.zeros((2, 4), "float32"))
    assert len(north.run(command("bouquet node predict")).split()) == 2
    assert "model" in north.run(command("bouquet export"))
    assert "nothing the devices keep was in them" in north.run(command("bouquet audit"))
    kept = sorted(path.name for path in (south.folder / "state/predictors").iterdir())
    assert kept == ["south.safetensors", "west.safetensors"]
