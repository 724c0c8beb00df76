"""What tests of a deployment share: one SuperLink with three nodes, and runs on it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bouquet.deployment import Deployment, Host, follow, hosts_of
from server_app.runfolder import RunFolder
from strategies.settings import Settings, parse
from tests.conftest import Run, kebab

Keys = dict[str, Any]
PROBLEM: Keys = {"nodes": 3, "local_steps": 3, "data": {"name": "synthetic", "clients": 3}}


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
        needs = {"out": str(folder.path), "min_clients": len(self.hosts)}
        number = self.deployment.start_run(settings_of(**keys, **needs))
        return Going(self.deployment, number, folder)

    def states(self, client: str) -> list[Path]:
        """A client's newest state of each run, oldest run first."""
        name = f"{client}.safetensors"
        return sorted(path for host in self.hosts for path in host.folder.glob(f"runs/*/{name}"))


@dataclass
class Going:
    """A run that goes on."""

    deployment: Deployment
    number: int
    folder: RunFolder

    def wait_for_round(self, round_: int) -> None:
        deadline = time.monotonic() + 120
        while len(self.folder.read_events(round_)) < round_:
            assert self.deployment.ended(self.number) is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def finish(self) -> Run:
        follow(self.deployment, self.number, self.folder, lambda event: None)
        return Run(self.folder.path)


def settings_of(**keys: Any) -> Settings:
    return parse(kebab(PROBLEM | keys))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "private").mkdir(mode=0o700)
    deployment = Deployment(folder / "private", folder / "logs")
    hosts = hosts_of(settings_of(), RunFolder(folder))
    try:
        deployment.start_link()
        for host in hosts:
            deployment.admit(host)
        yield Fleet(deployment, hosts, folder)
    finally:
        deployment.stop()


@pytest.fixture
def inline(start: Callable[..., Run]) -> Callable[..., Run]:
    """The same run in one process."""
    return lambda **keys: start(**PROBLEM | keys)
