"""What is sent to nodes, and how they are started."""

import io
import os
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from bouquet.core.errors import RunFailed
from bouquet.deploy.bundle import bundle
from bouquet.deploy.commands import node_environment
from bouquet.deploy.deployment import supervise
from bouquet.deploy.superlink import LINK_ENDED, Deployment
from bouquet.flower.private import build_fab_from_disk
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder


def names(app: bytes) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(app)).namelist())


def test_the_app_that_is_sent_is_the_one_flower_would_build(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.toml", "*.json", "*.md", ".gitignore"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("needs git to tell what is ours")
    for name in filter(lambda one: (root / one).exists(), listed.stdout.split()):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((root / name).read_bytes())
    theirs = names(build_fab_from_disk(tmp_path))
    texts = {name for name in theirs if name.endswith(".md") or name == "LICENSE"}
    assert names(bundle()) == theirs - texts


def test_the_app_that_an_installed_bouquet_sends_is_the_same(
    installed: Path, tmp_path: Path
) -> None:
    (installed / "strangers.toml").write_text("of another package")
    code = "import sys; from bouquet.deploy.bundle import bundle; sys.stdout.buffer.write(bundle())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout == bundle()


def test_a_node_loads_what_training_needs_and_not_what_shares_out_data(tmp_path: Path) -> None:
    words = node_environment(tmp_path)
    executor = Path(words["PATH"].split(os.pathsep)[0]) / "flower-superexec"
    assert os.access(executor, os.X_OK)
    assert "torch" in executor.read_text()
    assert "flwr_datasets" not in executor.read_text()


class Shaky(Deployment):
    """A deployment whose server's half dies as it is told to."""

    def __init__(self, folder: Path, ends: list[str]) -> None:
        super().__init__(folder, folder)
        self.ends, self.resumed, self.revived = ends, list[bool](), 0

    def start_run(self, settings: Settings) -> int:
        self.resumed.append(settings.run.resume)
        return 1

    def ended(self, run: int) -> str | None:
        return self.ends.pop(0)

    def revive_link(self) -> None:
        self.revived += 1


KILLED, FAILED = f"{LINK_ENDED} -9", "ServerApp failed with exception: it diverged"


@pytest.mark.parametrize(
    ("ends", "resumed", "error"),
    [
        ([""], [False], None),
        ([KILLED, "No heartbeat received from the task", ""], [False, True, True], None),
        ([KILLED] * 9, [False, True, True, True], "ended with -9"),
        ([KILLED, FAILED], [False, True], "it diverged"),
        (["stopped by its user"], [False], "stopped"),
    ],
)
def test_a_run_whose_server_dies_is_resumed_a_few_times(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[str],
    resumed: list[bool],
    error: str | None,
) -> None:
    monkeypatch.setattr("bouquet.deploy.deployment.time.sleep", lambda seconds: None)
    folder = RunFolder(tmp_path / "run")
    folder.checkpoint.parent.mkdir(parents=True)
    folder.checkpoint.touch()
    link = Shaky(tmp_path, list(ends))
    with pytest.raises(RunFailed, match=error) if error else nullcontext():
        supervise(link, parse({}), folder, lambda event: None)
    assert link.resumed == resumed
    assert link.revived == len(resumed) - 1
