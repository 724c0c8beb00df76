"""What tests share: small settings, runs in a temporary folder, and reading them back."""

import csv
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from bouquet.client_app.stores import read_state
from bouquet.engines import simulate, with_nodes
from bouquet.server_app.main import Job
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies import SCHEMES

Array = NDArray[np.float64]

# A scheme that takes its steps and its predictions as they are from another of ours differs from it
# in facts and defaults alone. Tests that put every scheme to work leave it out: its own tests say
# that it ends with the other's bits.
WORKING = [
    name
    for name, kind in SCHEMES.items()
    if kind.pooled or {"local_update", "predictor", "assembled"} & vars(kind).keys()
]

# A console keeps for life the width that COLUMNS has when it is made; made now, without one, it
# takes the width that each test sets.
os.environ.pop("COLUMNS", None)
importlib.import_module("bouquet.cli.display")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every
# command that they start, those included whose answer to Ctrl-C they test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run and machine, however slow it is.
hypothesis.settings.register_profile("bouquet", deadline=None, derandomize=True)
hypothesis.settings.load_profile("bouquet")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait, for devices over gRPC, and files that compute take turns.

    Workers take files in this order: the machine computes for some of them while others wait.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [found for path, found in files.items() if path.parent.name == "edge"]
    computing = [found for path, found in files.items() if path.parent.name != "edge"]
    nothing: list[pytest.Item] = []
    turns = itertools.zip_longest(waiting, computing, fillvalue=nothing)
    items[:] = [item for pair in turns for found in pair for item in found]


@dataclass(frozen=True)
class Run:
    """A finished run, as its folder tells it."""

    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return summary

    @property
    def sha(self) -> str:
        return str(self.summary["shared_sha256"])

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "events.jsonl").read_text().splitlines()]

    @property
    def clients(self) -> list[dict[str, str]]:
        with open(self.path / "clients.csv", newline="") as file:
            return list(csv.DictReader(file))

    def server(self) -> dict[str, Array]:
        """All the server holds."""
        arrays: dict[str, Array] = load_file(self.path / "server" / "checkpoint.safetensors")
        return arrays

    def shared(self, name: str = "w") -> Array:
        """A parameter of the server's model."""
        return self.server()[f"w/{name}"]

    def predictor(self, client: str, name: str = "w") -> Array:
        """A parameter of a client's own model."""
        file = self.path / "predictors" / f"{client}.safetensors"
        arrays: dict[str, Array] = load_file(file)
        return arrays[name]

    def personal(self, client: str) -> dict[str, Array]:
        """What a client keeps."""
        state = read_state(self.path / "state" / f"{client}.safetensors")
        return {name: value.numpy() for name, value in state.tensors.items()}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Run]:
    """Run a simulation: ``start(scheme="apfl", rounds=2, data={"clients": 4})``."""
    count = 0

    def run(
        *,
        engine: str = "inline",
        folder: Path | None = None,
        resume: bool = False,
        settings: Settings | None = None,
        **keys: Any,
    ) -> Run:
        nonlocal count
        count += 1
        place = RunFolder(folder or tmp_path / f"run{count}")
        chosen = with_nodes(settings or parse(kebab(keys)))
        simulate([Job(chosen, place, resume)], engine)
        return Run(place.path)

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Settings], Run]:
    """The run of some settings, computed once however many tests look at it."""
    runs: dict[Settings, Run] = {}

    def run(settings: Settings) -> Run:
        if settings not in runs:
            folder = RunFolder(tmp_path_factory.mktemp("finished") / "run")
            simulate([Job(with_nodes(settings), folder)], "inline")
            runs[settings] = Run(folder.path)
        return runs[settings]

    return run


def kebab(keys: dict[str, Any]) -> dict[str, object]:
    """``local_steps=3, data={"clients": 4}`` as flat keys."""
    from bouquet.objects import flat  # not before the consoles are made

    return flat(keys)


@dataclass(frozen=True)
class Quadratics:
    """A problem whose every iterate is known by algebra."""

    path: Path
    init: Array
    a: list[Array]
    c: list[Array]

    @property
    def keys(self) -> dict[str, Any]:
        return {
            "data": {"name": "quadratic", "path": str(self.path)},
            "dtype": "float64",
            "batch_size": 0,
            "save_predictors": True,
        }


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder into which pip would install us: the wheel, unpacked."""
    words = ["build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-m", "hatchling", *words], cwd=root, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    return tmp_path / "installed"


@pytest.fixture
def quadratics(tmp_path: Path) -> Quadratics:
    """Three clients in three dimensions, with curvatures between 0.2 and 1.2."""
    return make_quadratics(tmp_path / "problem.json", clients=3, size=3, seed=1)


def make_quadratics(path: Path, clients: int, size: int, seed: int) -> Quadratics:
    rng = np.random.default_rng(seed)
    a, c = [], []
    for _ in range(clients):
        basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
        matrix = basis @ np.diag(rng.uniform(0.2, 1.2, size)) @ basis.T
        a.append((matrix + matrix.T) / 2)
        c.append(rng.normal(size=size))
    init = rng.normal(size=size)
    entries = [{"A": one.tolist(), "c": other.tolist()} for one, other in zip(a, c, strict=True)]
    path.write_text(json.dumps({"init": init.tolist(), "clients": entries}))
    return Quadratics(path, init, a, c)
