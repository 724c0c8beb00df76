"""A deployment with another Flower than the one installed here, in an environment of its own."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run

OTHER = os.environ.get("BOUQUET_TEST_FLOWER", "")
pytestmark = [
    pytest.mark.edge,
    pytest.mark.skipif(not OTHER, reason="BOUQUET_TEST_FLOWER names no Python with another Flower"),
]
ROOT = Path(__file__).parents[2]


def test_a_deployment_ends_with_the_bits_of_a_simulation_here(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    """Keys, TLS, two nodes: all that the versions do in different ways."""
    keys = {"scheme": "apfl", "rounds": 2, "local-steps": 2, "data.name": "synthetic"}
    words = [f"-c{name}={value}" for name, value in (keys | {"data.clients": 2}).items()]
    command = [OTHER, "-m", "bouquet", "deploy", "--nodes", "2", *words, "--out", "run"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)
    here = start(
        scheme="apfl", rounds=2, nodes=2, local_steps=2, data={"name": "synthetic", "clients": 2}
    )
    there = json.loads((tmp_path / "run/summary.json").read_text())
    assert there["shared_sha256"] == here.sha
