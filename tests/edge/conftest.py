"""What tests of a deployment share: one SuperLink with three nodes, and runs on it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bouquet.client_app.stores import read_state
from bouquet.core.trees import sha256
from bouquet.deploy.commands import Host
from bouquet.deploy.deployment import hosts_of, pass_on_rounds, supervise
from bouquet.deploy.superlink import Deployment
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder
from tests.conftest import Run, kebab

Keys = dict[str, Any]
PROBLEM: Keys = {"local_steps": 3, "data": {"name": "synthetic", "clients": 3}}


@dataclass
class Fleet:
    """A deployment, and who is in it."""

    deployment: Deployment
    hosts: list[Host]
    folder: Path
    count: int = 0

    def start(self, **keys: Any) -> "Going":
        """Start a run on all nodes."""
        self.count += 1
        folder = RunFolder(self.folder / f"run{self.count}")
        clients = sum(len(host.clients) for host in self.hosts)
        settings = settings_of(**keys, out=str(folder.path), min_clients=clients)
        return Going(self.deployment, settings, folder, self.deployment.start_run(settings))

    def supervise(self, **keys: Any) -> Run:
        """A run on all nodes from start to end, as ``bouquet deploy`` has it."""
        self.count += 1
        folder = RunFolder(self.folder / f"run{self.count}")
        clients = sum(len(host.clients) for host in self.hosts)
        settings = settings_of(**keys, out=str(folder.path), min_clients=clients)
        supervise(self.deployment, settings, folder, lambda event: None)
        return Run(folder.path)

    def states(self, run: Run) -> dict[str, tuple[int, str]]:
        """The round and hash of every state that a run left on the devices, by file."""
        name = RunFolder(run.path).read_name()
        return {
            key: one
            for host in self.hosts
            for key, one in states(host.folder / "runs" / name).items()
        }


@dataclass
class Going:
    """A run that goes on."""

    deployment: Deployment
    settings: Settings
    folder: RunFolder
    number: int

    def resume(self, **keys: Any) -> None:
        """Go on from the checkpoint, with another app at the server."""
        settings = self.settings.with_run(resume=True, **keys)
        self.number = self.deployment.start_run(settings)

    def wait_for_round(self, round_: int) -> None:
        deadline = time.monotonic() + 120
        while len(self.folder.read_events(round_)) < round_:
            assert self.deployment.ended(self.number) is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def finish(self) -> Run:
        pass_on_rounds(self.deployment, self.number, self.folder, lambda event: None)
        return Run(self.folder.path)


def states(folder: Path) -> dict[str, tuple[int, str]]:
    """The round and hash of every newest state below a folder."""
    found = {}
    for path in folder.rglob("[0-9]*.safetensors"):
        if path.stem.isdigit():
            state = read_state(path)
            found[path.relative_to(folder).as_posix()] = (state.round, sha256(state.tensors))
    return found


def settings_of(**keys: Any) -> Settings:
    return parse(kebab(PROBLEM | keys))


@pytest.fixture(scope="module")
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """As many nodes as the module's ``NODES``; where they are two, one is a gateway."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "private").mkdir(mode=0o700)
    deployment = Deployment(folder / "private", folder / "logs")
    hosts = hosts_of(settings_of(nodes=request.module.NODES), RunFolder(folder))
    try:
        deployment.start_link()
        deployment.admit(hosts)
        yield Fleet(deployment, hosts, folder)
    finally:
        deployment.stop()


@pytest.fixture
def inline(request: pytest.FixtureRequest, start: Callable[..., Run]) -> Callable[..., Run]:
    """The same run in one process."""
    return lambda **keys: start(nodes=request.module.NODES, **PROBLEM | keys)
