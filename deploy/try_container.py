"""Do what Containerfile and compose.yaml say, without a container engine.

``python deploy/try_container.py`` takes the image's steps in a new folder, with a new virtual
environment for its Python. Then it starts the services on 127.0.0.1, trains two rounds on the three
nodes, asks the dashboard for the run, and ends all it started. Folders of the image are folders
below the new one, ports are free ones. What an engine does is left out: users, networks,
capabilities.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bouquet.deploy.processes import end_strays, free_port

ROOT = Path(__file__).parents[1]
FOLDERS = ("/src", "/wheels", "/srv/bouquet", "/usr/local/bin")  # of the image, as steps name them
PLACE = "/var/lib/bouquet/"
NEEDS_ROOT = "useradd"
KEYS = 'scheme="apfl" rounds=2 local-steps=2 min-clients=3 eval-every=2'
PATIENCE = 300.0  # seconds


def steps(containerfile: str) -> list[tuple[str, str]]:
    """Instructions and their words; lines that go on are one."""
    text = re.sub(r"^#.*\n", "", containerfile, flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(one, words) for one, _, words in (line.partition(" ") for line in lines) if one]


@dataclass(frozen=True)
class Image:
    """A folder that stands for the image's file system."""

    folder: Path

    def build(self) -> None:
        """Take every step that needs no root."""
        subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
        for folder in FOLDERS:
            self.inside(folder).mkdir(parents=True)
        for instruction, words in steps((ROOT / "Containerfile").read_text("utf-8")):
            if instruction == "COPY":
                self._copy(words)
            elif instruction == "RUN" and NEEDS_ROOT not in words:
                print("RUN", words, flush=True)
                command = re.sub(rf"(?<!\w)({'|'.join(FOLDERS)})", rf"{self.folder}\1", words)
                subprocess.run(
                    command, shell=True, cwd=self.inside("/src"), env=self.words, check=True
                )

    def _copy(self, words: str) -> None:
        *options, source, target = shlex.split(words)
        if source == ".":
            self._context()
        elif not any(one.startswith("--from") for one in options):
            shutil.copy(ROOT / source, self.inside(target))

    def _context(self) -> None:
        """The files under version control that .dockerignore lets through."""
        lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        wanted = [line[1:] for line in lines if line.startswith("!")]
        listed = subprocess.run(
            ["git", "ls-files", *wanted], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            if not name.startswith("reproduce/results"):
                target = self.inside("/src") / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target, follow_symlinks=False)

    def inside(self, path: str) -> Path:
        """Where a path of the image is."""
        return self.folder / path.removeprefix("/")

    @property
    def words(self) -> dict[str, str]:
        """The environment of its processes."""
        path = [self.folder / "venv/bin", self.inside("/usr/local/bin"), os.environ["PATH"]]
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return kept | {"PATH": os.pathsep.join(map(str, path)), "FLWR_TELEMETRY_ENABLED": "0"}


@dataclass(frozen=True)
class Service:
    """One of compose.yaml's, with its volumes in a folder of its own."""

    name: str
    command: list[str]
    home: Path
    image: Image
    superlink: str

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start it, with what is written going to a file."""
        print(self.name, *self.command, *more, flush=True)
        with open(self.home / "log", "ab") as log:
            return subprocess.Popen(
                ["bouquet-container", *self.command, *more],
                cwd=self.image.inside("/srv/bouquet"),
                env=self.image.words
                | {"BOUQUET_HOME": str(self.home), "BOUQUET_SUPERLINK": self.superlink},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def services(image: Image, superlink: str) -> dict[str, Service]:
    """Compose.yaml's services, volumes linked into each one's folder."""
    told: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    found = {}
    for name, one in told["services"].items():
        home = image.folder / "services" / name
        home.mkdir(parents=True)
        for volume, target, *_ in (text.split(":") for text in one["volumes"]):
            assert volume in told["volumes"], volume
            place = image.folder / "volumes" / volume
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            (home / target.removeprefix(PLACE)).symlink_to(place)
        found[name] = Service(name, one["command"], home, image, superlink)
    return found


@contextmanager
def ended(processes: list[subprocess.Popen[bytes]], homes: Path) -> Iterator[None]:
    """End what was started, with the processes it started, whatever happens."""
    try:
        yield
    finally:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                try:
                    os.killpg(process.pid, signum)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and any(one.poll() is None for one in processes):
                time.sleep(0.1)
        for home in homes.glob("*/*/flower"):
            end_strays(home)


def run(image: Image) -> dict[str, Any]:
    """Start everything, run, and return what the dashboard and the run's folder say."""
    fleet, control, page = free_port(), free_port(), free_port()
    all_of = services(image, f"127.0.0.1:{fleet}")
    started: list[subprocess.Popen[bytes]] = []
    more = {
        "superlink": ("--fleet", f"127.0.0.1:{fleet}", "--control", f"127.0.0.1:{control}"),
        "dashboard": ("--host", "127.0.0.1", "--port", str(page), "--token", "shown"),
    }
    with ended(started, image.folder / "services"):
        made = all_of.pop("data").start()
        started.append(made)
        assert made.wait(PATIENCE) == 0
        for name, one in all_of.items():
            port = ("--port", str(free_port())) if name.startswith("node") else ()
            started.append(one.start(*more.get(name, port)))
        registered = started[1 + list(all_of).index("register")]
        assert registered.wait(PATIENCE) == 0, "nodes were not let in"
        link = all_of["superlink"]
        asked = Service("run", ["run", "first", KEYS], link.home, image, link.superlink).start()
        started.append(asked)
        assert asked.wait(PATIENCE) == 0
        summary = json.loads((link.home / "runs/first/summary.json").read_text("utf-8"))
        question = urllib.request.Request(
            f"http://127.0.0.1:{page}/api/runs", headers={"Authorization": "Bearer shown"}
        )
        with urllib.request.urlopen(question) as answer:
            shown = json.load(answer)
    return {"summary": summary, "shown": shown}


def main() -> None:
    """Build, run, say what came of it."""
    with tempfile.TemporaryDirectory(prefix="bouquet-container-") as folder:
        image = Image(Path(folder))
        try:
            image.build()
            told = run(image)
        except BaseException:
            for log in sorted(Path(folder).glob("services/*/log")):
                print(f"--- {log.parent.name}\n{log.read_text('utf-8')[-3000:]}", file=sys.stderr)
            raise
    summary = told["summary"]
    print(f"{summary['clients']} nodes, {summary['rounds']} rounds, {summary['failures']} failures")
    assert (summary["engine"], summary["clients"], summary["failures"]) == ("grpc", 3, 0)
    assert "first" in json.dumps(told["shown"])


if __name__ == "__main__":
    main()
