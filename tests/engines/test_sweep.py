"""A sweep whose workers are Ray's."""

from pathlib import Path
from typing import Any

from bouquet.sweeping import course
from bouquet.sweeping.asked import from_tables


def test_workers_of_ray_find_what_this_process_finds(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"rounds": 2, "local-steps": 2, "data.clients": 3}
    grid = {"lr": [0.1, 1.0], "batch-size": [5, 10]}
    asked = from_tables({"schemes": ["apfl"], "keys": keys, "grid": grid})
    course.run(asked, tmp_path / "ray", engine="ray", quiet=True)
    course.run(asked, tmp_path / "here", count=1, quiet=True)
    for file in ("chosen.json", "trials.csv", "final/apfl-seed0/clients.csv"):
        assert (tmp_path / "ray" / file).read_bytes() == (tmp_path / "here" / file).read_bytes()
