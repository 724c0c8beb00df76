"""The example app, as its user runs it."""

import re
import subprocess
from pathlib import Path

from tests.engines.test_commands import ROOT, end_processes, flower_environment


def test_the_example_runs_with_flowers_own_command(tmp_path: Path) -> None:
    """Personal models are right where one model for all cannot be: no client has all digits."""
    home = tmp_path / "flower"
    environment = flower_environment(home) | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            ["flwr", "run", ".", "--stream", "--run-config", "num-server-rounds=3"],
            cwd=ROOT / "examples" / "flower_app",
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
    finally:
        end_processes(str(home))  # the SuperLink that `flwr run` leaves running
    said = done.stdout + done.stderr
    found = dict(re.findall(r"(shared|personal) accuracy (\d\.\d+)", said))
    assert float(found["personal"]) > float(found["shared"]), said
