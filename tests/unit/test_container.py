"""The image and the services: what can be told of them without a container engine."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.pages import ROOT, blocks
from tests.unit.test_pages import understood

SCRIPT = ROOT / "deploy" / "container.sh"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
IMAGE = (ROOT / "Containerfile").read_text("utf-8")
# Stands for every program: it writes down its words, and makes what others wait for.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$BOUQUET_HOME/called"
case "$*" in "node key "*) touch "$3" "$3.pub" ;; esac
"""


def called(service: list[str], home: Path) -> list[list[str]]:
    """The commands a service comes to, in a home as a volume would have it."""
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("bouquet", "flwr"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    words = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "BOUQUET_HOME": str(home)}
    subprocess.run(["sh", SCRIPT, *service], env=words, check=True, timeout=30)
    lines = (home / "called").read_text().splitlines()
    (home / "called").unlink()
    return [line.split() for line in lines]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Folders as after the first start."""
    for name in ("link", "exchange", "state", "data", "runs"):
        (tmp_path / name).mkdir()
    (tmp_path / "link" / "ca.pem").touch()
    for client in COMPOSE["services"]["register"]["command"][1:]:
        (tmp_path / "exchange" / f"{client}.key.pub").touch()
    return tmp_path


def test_services_come_to_commands_that_there_are(home: Path) -> None:
    commands = {name: called(one["command"], home) for name, one in COMPOSE["services"].items()}
    for program, *words in (words for lines in commands.values() for words in lines):
        assert program == "bouquet"
        understood(words)
    (serves,) = commands["superlink"]
    assert "--name" not in serves  # it has certificates
    assert [words[2] for words in commands["register"]] == ["nodes", *3 * ["register"]]
    assert commands["node-000"][0][1:3] == ["node", "key"]
    assert "superlink:9092" in commands["node-000"][1]
    assert (home / "exchange" / "ca.pem").exists()


def test_the_first_start_certifies_the_name_that_nodes_call(home: Path) -> None:
    (home / "link" / "ca.pem").unlink()
    (serves,) = called(["superlink"], home)
    assert serves[-2:] == ["--name", "superlink"]


def test_no_node_mounts_anothers_secrets() -> None:
    held = {
        name: {text.partition(":")[0] for text in one["volumes"]}
        for name, one in COMPOSE["services"].items()
    }
    assert set().union(*held.values()) == set(COMPOSE["volumes"])
    assert {name for name, volumes in held.items() if "link" in volumes} == {
        "superlink",
        "register",
    }
    states = [volume for volumes in held.values() for volume in volumes if "state" in volume]
    assert len(states) == len(set(states)) == 3


def test_the_image_is_no_roots_and_takes_in_nothing_but_code() -> None:
    assert re.search(r"^USER [1-9]\d*$", IMAGE, re.M)
    assert IMAGE.index("\nUSER ") < IMAGE.index("\nENTRYPOINT ")
    let_in = (ROOT / ".dockerignore").read_text("utf-8").split("\n*\n")[1]
    for name in re.findall(r"^!(.*)$", let_in, re.M):
        assert (ROOT / name).exists(), name
    for source in re.findall(r"^COPY (?:--chmod=\d+ )?(\w\S*) ", IMAGE, re.M):
        assert f"!{source}\n" in let_in, source


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_understands_the_services(tmp_path: Path) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("bouquet", "flwr"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    units = [one.text for one in blocks("deploy.md") if one.language == "ini"]
    names = ("bouquet-superlink", "bouquet-run", "bouquet-node")
    for name, unit in zip(names, units, strict=True):
        (tmp_path / f"{name}.service").write_text(unit.replace("/srv/bouquet", str(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(tmp_path.glob("*.service"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
