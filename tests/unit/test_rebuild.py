"""A client's own model from a run that did not write it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bouquet.client_app.predictor import FORMAT, read_predictor
from bouquet.core.errors import BadInput
from bouquet.core.trees import sha256
from bouquet.engines import simulate, with_nodes
from bouquet.rebuild import predictor_of, rebuild
from bouquet.server_app.main import Job
from bouquet.settings import parse
from bouquet.storage.events import Event
from bouquet.storage.files import unseal
from bouquet.storage.runfolder import RunFolder
from tests.conftest import Run, kebab

Start = Callable[..., Run]
PROBLEM: dict[str, Any] = {
    "nodes": 2,
    "rounds": 3,
    "local_steps": 2,
    "data": {"clients": 5},
}
KINDS: dict[str, dict[str, Any]] = {
    "keeps a model": {"scheme": "apfl"},
    "keeps nothing": {"scheme": "fedavg"},
    "adapts": {"scheme": "finetune", "lr_schedule": "linear"},
    "adapts by a meta-step": {"scheme": "perfedavg"},
    "keeps a part": {"scheme": "fedalt"},
    "is sent a model of its own": {"scheme": "fedu"},
    "mixes what it is sent": {"scheme": "dfedu"},
    "sits rounds out": {"scheme": "ditto", "clients_per_round": 2},
    "pools": {"scheme": "centralized"},
    "in stages": {"pipeline": "fedavg:1 fedalt:1 finetune:1", "personal": {"split": "adapter"}},
    "in stages of one kind": {"pipeline": "apfl:1 apfl:2", "stage2.lr": 0.01},
    "comes late": {"scheme": "apfl", "join": {"clients": 3, "rounds": 2}},
    "comes in a round": {"scheme": "apfl", "join": {"clients": 3, "round": 2}},
}


def keys(**own: Any) -> dict[str, Any]:
    told = PROBLEM | own
    return {k: v for k, v in told.items() if not (k == "rounds" and "pipeline" in own)}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_model_built_later_has_the_bits_the_run_would_have_written(
    start: Start, tmp_path: Path, kind: str
) -> None:
    plain = start(**keys(**KINDS[kind]))
    other = start(**keys(**KINDS[kind], save_predictors=True)).path / "predictors"
    before = files(plain.path)
    for client in ("000", "001", "004"):
        words, weights = unseal(rebuild(RunFolder(plain.path), client, tmp_path / client), FORMAT)
        expected = unseal(other / f"{client}.safetensors", FORMAT)
        assert words == expected[0]
        assert sha256(weights) == sha256(expected[1])
    assert files(plain.path) == before


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def stopped(folder: Path, after: int, **own: Any) -> Path:
    """A run of which a round more than ``after`` was trained, but not finished."""

    def stop(event: Event) -> None:
        if event["round"] == after:
            raise KeyboardInterrupt

    settings = with_nodes(parse(kebab(keys(**own))))
    with pytest.raises(KeyboardInterrupt):
        simulate([Job(settings, RunFolder(folder), observe=stop)], "inline")
    return folder


@pytest.mark.parametrize("scheme", ["apfl", "finetune"])
def test_the_model_of_a_stopped_run_is_that_of_its_last_finished_round(
    start: Start, tmp_path: Path, scheme: str
) -> None:
    run = stopped(tmp_path / "stopped", 2, scheme=scheme)
    shorter = start(**keys(scheme=scheme, rounds=2, save_predictors=True))
    expected = read_predictor(shorter.path / "predictors" / "003.safetensors")
    found = predictor_of(run, "003")
    assert found.round == 2
    assert all(found.weights[name].equal(value) for name, value in expected.weights.items())


def test_a_model_that_was_written_is_taken_as_it_is(start: Start) -> None:
    run = start(**keys(scheme="apfl", save_predictors=True))
    shutil.rmtree(run.path / "state")
    assert predictor_of(run.path, "000").client == "000"


@pytest.mark.parametrize(
    ("client", "change", "said"),
    [
        ("nobody", lambda run: None, "--client must be one of 000, 001, "),
        ("000", lambda run: shutil.rmtree(run / "state"), "What client 000 keeps is not in "),
        (
            "000",
            lambda run: (run / "state" / "000.safetensors").write_bytes(b"x"),
            "Client 000 has no model: .*000.safetensors is damaged",
        ),
        (
            "000",
            lambda run: (run / "server" / "checkpoint.safetensors").write_bytes(b"x"),
            ".*checkpoint.safetensors is damaged",
        ),
    ],
    ids=["stranger", "state gone", "state damaged", "checkpoint damaged"],
)
def test_what_is_not_there_is_not_made_up(
    start: Start, client: str, change: Callable[[Path], object], said: str
) -> None:
    run = start(**keys(scheme="apfl")).path
    change(run)
    with pytest.raises(BadInput, match=f"^{said}"):
        predictor_of(run, client)


def test_a_model_on_a_device_elsewhere_is_asked_for_there(start: Start) -> None:
    run = start(**keys(scheme="fedavg")).path
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"engine": "grpc"}))
    with pytest.raises(
        BadInput, match=r"on its device: .* `bouquet export STATE-DIR --client 000`"
    ):
        predictor_of(run, "000")
