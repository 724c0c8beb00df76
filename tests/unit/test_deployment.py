"""What is sent to nodes, and how they are started."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bouquet.deploy.bundle import bundle
from bouquet.deploy.commands import node_environment
from bouquet.flower.private import build_fab_from_disk


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
