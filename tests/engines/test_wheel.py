"""The wheel in an environment of its own, used from an empty folder: somebody else's scheme, whose
model imports from packages that are called as our folders are.
"""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCHEME = '''\
"""Everyone's body, a head of one's own."""

from dataclasses import dataclass
from typing import NamedTuple

from bouquet import Averaging, Model, Tree, Work, key


class Head(NamedTuple):
    v: Tree


@dataclass(frozen=True)
class OwnHead(Averaging[Head]):
    """Body and head move together; the head stays at home."""

    name = "ownhead"
    title = "A head of one's own"
    paper = "none yet"
    shares, keeps = "the body", "the head"

    head: str = key("output", "what the names of the head's parameters begin with")

    def init_personal(self, task, examples):
        return Head({n: w for n, w in task.initial.items() if n.startswith(self.head)})

    def whole(self, body, personal):
        return {n: personal.v.get(n, w) for n, w in body.items()}

    def local_update(self, work: Work, payload, personal):
        start = self.whole(payload.w, personal)
        end = work.descend(work.task.loss, start, work.batches)
        body = {n: payload.w[n] if n in personal.v else w for n, w in end.items()}
        return Model(body), Head({n: end[n] for n in personal.v})

    def predictor(self, work, payload, personal):
        return self.whole(payload.w, personal)
'''
FOLDER = {
    "mine.py": SCHEME,
    "net.py": "from models.nets import Net\n",
    "models/__init__.py": "",
    "models/nets.py": (
        "from torch import nn\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.body = nn.Linear(shape[0], 8)\n"
        "        self.output = nn.Linear(8, classes)\n\n"
        "    def forward(self, x):\n"
        "        return self.output(self.body(x).relu())\n"
    ),
    "data.py": "raise ImportError('this is the user\\'s own')\n",
    "strategies/__init__.py": "raise ImportError('this is the user\\'s own')\n",
    "client_app/__init__.py": "raise ImportError('this is the user\\'s own')\n",
    "server_app/__init__.py": "raise ImportError('this is the user\\'s own')\n",
    "test_mine.py": (
        "from bouquet.testing import check_scheme\nfrom mine import OwnHead\n\n\n"
        "def test_the_laws():\n    check_scheme(OwnHead)\n"
    ),
}
KEYS = ("scheme=./mine.py:OwnHead", "model.name=./net.py:Net", "rounds=2", "data.clients=4")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel as pip installs it; the rest is that of the tests."""
    root, place = Path(__file__).parents[2], tmp_path_factory.mktemp("environment")
    build = ["build", "--target", "wheel", "--directory", str(place / "dist")]
    subprocess.run([sys.executable, "-m", "hatchling", *build], cwd=root, check=True)
    (wheel,) = (place / "dist").iterdir()
    venv = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    # Packages below a folder that is named in a .pth are found; that folder's own .pth files, of
    # which one leads to this checkout, are not read.
    needs = Path(packages.stdout.strip()) / "needs.pth"
    needs.write_text(sysconfig.get_path("purelib") + "\n")
    options = ["--quiet", "--no-deps", "--no-index", "--ignore-installed"]
    install = ["-m", "pip", "--python", python, "install", *options, str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    return venv / "bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FOLDER.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(folder: Path, *command: str | Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def simulated(environment: Path, folder: Path, engine: str) -> str:
    words = [word for key in KEYS for word in ("-c", key)]
    simulate = (environment / "bouquet", "simulate", "--engine", engine, "--quiet", "--json")
    sha: str = json.loads(run(folder, *simulate, *words))["shared_sha256"]
    return sha


def test_the_wheel_installs_one_name(environment: Path, tmp_path: Path) -> None:
    where = "import bouquet, sysconfig; print(bouquet.__file__); "
    where += "print(sysconfig.get_path('purelib'))"
    file, packages = run(tmp_path, environment / "python", "-c", where).split()
    assert Path(file).is_relative_to(packages)
    assert {path.name.partition("-")[0] for path in Path(packages).iterdir()} == {
        "bouquet",
        "needs.pth",
    }


def test_the_wheel_brings_the_conformance_vectors(environment: Path, tmp_path: Path) -> None:
    listed = run(tmp_path, environment / "bouquet", "conformance", "list")
    assert str(environment.parent) in listed.splitlines()[-1]
    run(tmp_path, environment / "bouquet", "conformance", "check", "apfl-quadratic-all")


def test_somebody_elses_scheme_runs_on_inline_and_ray(environment: Path, folder: Path) -> None:
    assert len(SCHEME.splitlines()) <= 40
    listed = run(folder, environment / "bouquet", "schemes", "./mine.py:OwnHead")
    assert "ownhead.head=output" in listed
    assert simulated(environment, folder, "inline") == simulated(environment, folder, "ray")


def test_somebody_elses_scheme_goes_through_the_laws(environment: Path, folder: Path) -> None:
    said = run(folder, environment / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in said
