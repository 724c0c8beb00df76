"""A deployment that is watched: its nodes on the page, and nothing personal in its history."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import Run
from tests.edge.test_deploy import launch
from tests.engines.test_commands import KEYS
from tests.engines.test_companion import address, assert_none_serves

pytestmark = pytest.mark.edge


def test_nodes_of_a_deployment_are_served_while_it_lasts(tmp_path: Path) -> None:
    folder, place = tmp_path / "run", tmp_path / "private"
    place.mkdir()
    words = ("-c", "scheme=apfl", "-c", "rounds=3", "-c", "eval-every=1", "--nodes", "2")
    process = launch(place, *KEYS, *words, "--out", str(folder), "--dashboard", "--tensorboard")
    try:
        assert process.stderr is not None
        assert "2 nodes are starting" in process.stderr.readline()
        visitor = address(process)
        nodes: list[dict[str, Any]] = []
        while not nodes:
            assert process.poll() is None
            time.sleep(0.2)
            answer = visitor.get("/api/run", {"name": "run"})
            nodes = answer.json()["nodes"] if answer.status == 200 else []
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert [(one["node"], one["clients"], one["names"]) for one in nodes] == [
        ("0", 2, ["000", "002"]),
        ("1", 2, ["001", "003"]),
    ]
    assert all(one["last_seen"] >= 1 and one["time"] <= time.time() for one in nodes)
    assert_none_serves(folder)
    for line in (folder / "history.jsonl").read_text().splitlines():
        assert not {"alpha", "personal_norm", "drift"} & json.loads(line).keys()
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    assert [one.step for one in found.Scalars("accuracy/personal")] == [1, 2, 3]
    assert found.Tags()["histograms"] == []
    assert len(Run(folder).events) == 3
