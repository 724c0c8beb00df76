"""What runs on Ray ends as in one process: precision, history, other people's parts and schemes."""

from typing import Any

import pytest

from bouquet.engines import simulate
from bouquet.server_app.main import Job
from bouquet.settings import parse
from bouquet.storage.runfolder import RunFolder
from tests.conftest import Run, kebab
from tests.unit.test_own_parts import MINE

SCHEME = """
from dataclasses import dataclass
from bouquet.strategies.fedalt import FedAlt
import bouquet

@dataclass(frozen=True)
class Extra(FedAlt):
    name = "mine"
    extra: int = bouquet.key(1, "of no use", low=0)
"""
Both = dict[str, dict[str, Run]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The same runs on both engines; Ray takes long enough to start once."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "mine.py").write_text(MINE)
    (folder / "scheme.py").write_text(SCHEME)
    keys: dict[str, dict[str, Any]] = {
        "bf16": {"amp": "bf16", "data": {"clients": 4}},
        "history": {"eval_every": 1, "clients_per_round": 2, "data": {"clients": 4}},
        "own": {
            "scheme": f"{folder}/scheme.py:Extra",
            "mine": {"extra": 2},
            "loss": f"{folder}/mine.py:entropy",
            "metric": f"{folder}/mine.py:hits",
            "data": {"name": f"{folder}/mine.py:mapping"},
        },
    }
    usual = {"scheme": "apfl", "rounds": 2, "nodes": 2, "local_steps": 2}
    for engine in ("inline", "ray"):
        simulate(
            [
                Job(parse(kebab(usual | own)), RunFolder(folder / engine / name))
                for name, own in keys.items()
            ],
            engine,
        )
    return {name: {e: Run(folder / e / name) for e in ("inline", "ray")} for name in keys}


@pytest.mark.parametrize("name", ["bf16", "history", "own"])
def test_both_engines_end_with_the_same_bits(both: Both, name: str) -> None:
    inline, ray = both[name]["inline"], both[name]["ray"]
    assert inline.sha == ray.sha
    assert inline.clients == ray.clients


def test_both_engines_write_the_same_history(both: Both) -> None:
    one, other = (run.path / "history.jsonl" for run in both["history"].values())
    assert len(one.read_text().splitlines()) == 2
    assert one.read_bytes() == other.read_bytes()


def test_somebodys_scheme_and_measure_are_what_ran(both: Both) -> None:
    found = both["own"]["ray"].summary
    assert found["scheme"] == "mine"
    assert "hits" in found["personal"]
