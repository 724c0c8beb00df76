"""Commands for real machines, and personal models without a server."""

import json
import os
import pickle
import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from cryptography import x509
from flwr.app import Context, Message
from safetensors.torch import load_file

from bouquet.client_app import audit
from bouquet.client_app.predictor import export, find_predictor, read_predictor
from bouquet.client_app.stores import DeviceStore
from bouquet.core.errors import BadInput
from bouquet.engines import LocalNodes
from bouquet.flower import wire
from bouquet.server_app import loop
from bouquet.settings import parse
from bouquet.storage.files import BadFile
from bouquet.storage.runfolder import RunFolder
from bouquet.storage.state import Identity, PersonalState
from tests.conftest import Run, kebab
from tests.unit.test_cli import Bouquet, bouquet, files, small
from tests.unit.test_marker import Follow, answering_as_ours

__all__ = ["bouquet"]  # the fixture


@pytest.fixture
def becomes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run."""
    commands: list[list[str]] = []

    def become(file: str, command: list[str], environment: dict[str, str]) -> None:
        assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
        commands.append(command)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvpe", become)
    return commands


# A SuperLink and nodes


def test_a_superlink_is_certified_once_and_prints_its_command(
    bouquet: Bouquet, becomes: list[list[str]]
) -> None:
    outcome = bouquet("superlink", "--folder", "link", "--name", "server.example.org")
    assert outcome.code == 0
    assert shlex.split(outcome.err.splitlines()[-1]) == becomes[0]
    assert becomes[0][0] == "flower-superlink"
    assert "--enable-supernode-auth" in becomes[0]
    ca = Path("link/ca.pem").read_bytes()
    assert bouquet("superlink", "--folder", "link").code == 0
    assert Path("link/ca.pem").read_bytes() == ca
    assert bouquet("superlink", "--folder", "link", "--name", "other").code == 2


def test_certificates_verify_and_keys_are_private(
    bouquet: Bouquet, becomes: list[list[str]]
) -> None:
    bouquet("superlink", "--folder", "link", "--name", "server.example.org")
    ca, own = (
        x509.load_pem_x509_certificate(Path("link", name).read_bytes())
        for name in ("ca.pem", "server.pem")
    )
    own.verify_directly_issued_by(ca)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org", "localhost"]
    assert Path("link").stat().st_mode & 0o077 == 0
    for name in ("control.token", "executor.secret", "flower/credentials.yaml"):
        assert Path("link", name).stat().st_mode & 0o777 == 0o600
    token = Path("link/control.token").read_text()
    assert bouquet("superlink", "--folder", "link", "--control", "0.0.0.0:8000").code == 0
    assert Path("link/control.token").read_text() == token
    assert 'address = "127.0.0.1:8000"' in Path("link/flower/config.toml").read_text()
    assert token not in " ".join(becomes[-1])
    assert Path("link/server.key").stat().st_mode & 0o077 == 0


def test_a_certificate_is_renewed_without_new_files_on_devices(
    bouquet: Bouquet, becomes: list[list[str]]
) -> None:
    """The authority's key may be kept elsewhere, and must be its own."""
    bouquet("superlink", "--folder", "link", "--name", "server.example.org")
    assert Path("link/ca.key").stat().st_mode & 0o077 == 0
    ca, old = (Path("link", one).read_bytes() for one in ("ca.pem", "server.pem"))
    assert bouquet("superlink", "renew").out.split() == [
        *("server.example.org", "localhost", "127.0.0.1")
    ]
    new = Path("link/server.pem").read_bytes()
    assert new != old
    assert Path("link/ca.pem").read_bytes() == ca
    issuer = x509.load_pem_x509_certificate(ca)
    x509.load_pem_x509_certificate(new).verify_directly_issued_by(issuer)
    assert Path("link/server.key").stat().st_mode & 0o077 == 0
    Path("link/ca.key").rename("safe.key")
    outcome = bouquet("superlink", "renew")
    assert outcome.code == 2
    assert "--ca-key" in outcome.err
    moved = bouquet("superlink", "renew", "--ca-key", "safe.key", "--name", "new.example.org")
    assert moved.out.split() == ["new.example.org", "localhost", "127.0.0.1"]
    assert issuer.not_valid_after_utc > x509.load_pem_x509_certificate(new).not_valid_after_utc
    Path("safe.key").write_bytes(Path("link/server.key").read_bytes())
    assert "not the key of" in bouquet("superlink", "renew", "--ca-key", "safe.key").err


@pytest.mark.parametrize("clients", ["", "a,", "a,a"])
def test_a_key_is_registered_for_clients(bouquet: Bouquet, clients: str) -> None:
    outcome = bouquet("superlink", "register", "north.key.pub", "--clients", clients)
    assert outcome.code == 2
    assert "--clients must be one id" in outcome.err


def test_who_is_let_in_is_told_by_a_superlink_alone(bouquet: Bouquet) -> None:
    for words in (["nodes"], ["revoke", "a.pub"], ["rotate", "a.pub", "b.pub"]):
        outcome = bouquet("superlink", *words, "--folder", "nowhere")
        assert outcome.code == 2
        assert "holds no SuperLink" in outcome.err


def test_a_superlink_must_have_a_name(bouquet: Bouquet) -> None:
    outcome = bouquet("superlink", "--folder", "link")
    assert outcome.code == 2
    assert "--name" in outcome.err
    assert not Path("link").exists()


def test_a_node_prints_its_command(bouquet: Bouquet, becomes: list[list[str]]) -> None:
    assert bouquet("node", "key", "north.key").out == "north.key.pub\n"
    assert Path("north.key").stat().st_mode & 0o077 == 0
    Path("ca.pem").touch()
    words = ["--superlink", "host:9092", "--ca", "ca.pem", "--key", "north.key"]
    outcome = bouquet("node", *words, "--client-id", "north", "--state-dir", "state")
    assert outcome.code == 0
    assert shlex.split(outcome.err.splitlines()[-1]) == becomes[0]
    assert f'client-id="north" state-dir="{Path("state").absolute()}"' in becomes[0]


def test_a_node_must_know_who_it_is(bouquet: Bouquet) -> None:
    outcome = bouquet("node", "--superlink", "host:9092")
    assert outcome.code == 2
    assert "--client-id" in outcome.err


def test_a_key_is_not_replaced(bouquet: Bouquet) -> None:
    bouquet("node", "key", "north.key")
    before = Path("north.key").read_bytes()
    assert bouquet("node", "key", "north.key").code == 2
    assert Path("north.key").read_bytes() == before


# What a device stores


def test_a_device_shows_what_it_stores_and_refuses_what_is_damaged(bouquet: Bouquet) -> None:
    for client in ("a", "b"):
        identity = Identity("apfl", 2, "shape", client)
        runs = Path("state/runs")
        kept = PersonalState(identity, 5, {"alpha": torch.tensor(0.5)})
        DeviceStore(runs / "one", runs, keep=False).save(kept)
    outcome = bouquet("node", "state", "--state-dir", "state")
    assert outcome.code == 0
    assert outcome.out.count("apfl") == 2
    damaged = Path("state/runs/one/b.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    outcome = bouquet("node", "state", "--state-dir", "state")
    assert outcome.code == 1
    assert str(damaged) in outcome.err
    assert outcome.out.count("apfl") == 1


def test_an_empty_device_has_nothing_to_show(bouquet: Bouquet) -> None:
    assert bouquet("node", "state", "--state-dir", ".").code == 2


# What a device sent


@pytest.mark.parametrize("personal", [[], ["w/weight"]])
def test_an_audit_tells_what_was_sent_and_whether_it_was_personal(
    bouquet: Bouquet, personal: list[str]
) -> None:
    part = {"name": "w/weight", "shape": [2, 3], "dtype": "float32", "bytes": 24, "sha256": "ab12"}
    line = {
        "kind": "train",
        "round": 4,
        "bytes": 99,
        "arrays": [part],
        "personal": personal,
        "cpu_seconds": 2.5,
        "peak_memory": 300e6,
    }
    Path("state/sent").mkdir(parents=True)
    Path("state/sent/run.jsonl").write_text(json.dumps(line) + "\n")
    outcome = bouquet("audit", "state")
    assert outcome.code == (1 if personal else 0)
    (tensor,) = [row for row in outcome.out.splitlines() if "w/weight" in row]
    assert "2x3" in tensor
    assert ("PERSONAL" in tensor) == bool(personal)
    assert "state: 2.5 CPU s a round, 300 MB" in outcome.out
    assert "1 replies, 99 bytes" in outcome.out


def deployed(clients: str, policy: str = "", **keys: object) -> list[Message]:
    """All that a device sends in a run, with its folder in ``state``."""
    sent: list[Message] = []

    def on_device(message: Message, context: Context, follow: Follow) -> Message:
        own: dict[str, Any] = {"client-id": clients, "state-dir": "state", "policy": policy}
        sent.append(follow(message, Context(1, 1, own, context.state, {})))
        return sent[-1]

    settings = parse(kebab({"rounds": 2, "local_steps": 1, "data": {"clients": 2}} | keys))
    with closing(LocalNodes(1, answering_as_ours(on_device))) as grid:
        loop.run(grid, settings, RunFolder(Path("run")), engine="grpc")
    return sent


def test_an_audit_lists_every_field_that_left_with_its_numbers(bouquet: Bouquet) -> None:
    Path("policy.toml").write_text("label-counts = true")
    sent = deployed("000", "policy.toml", scheme="apfl", share_label_counts=True)
    outcome = bouquet("audit", "state")
    assert outcome.code == 0
    told = {row.split()[1]: row for row in outcome.out.splitlines() if row.startswith("│")}
    for reply in sent:
        records = reply.content
        fields = {*records.metric_records[wire.METRICS], *records.config_records[wire.NOTE]}
        assert fields | set(wire.unpack(records.array_records[wire.ARRAYS])) <= told.keys()
    introduction = sent[0].content.metric_records[wire.METRICS]
    for name in ("train_examples", "test_examples", "label_counts"):
        _, _, kinds, last, _ = (cell.strip() for cell in told[name].split("│"))
        assert kinds == "query"
        assert json.dumps(introduction[name]).startswith(last)
        assert last
    assert "evaluate" in told["personal_accuracy"]
    assert "apfl: nothing of what a client keeps is known to follow from these." in outcome.out
    assert "installed on the device" not in outcome.out


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ("000", "plsgd: a server can compute from these: theta_i, always"),
        ("000,001", "plsgd: hidden in sums over several clients: theta_i, always"),
    ],
)
def test_an_audit_names_what_a_server_can_compute(
    bouquet: Bouquet, clients: str, words: str
) -> None:
    deployed(clients, scheme="plsgd")
    outcome = bouquet("audit", "state")
    assert outcome.code == 0
    assert words in outcome.out


def test_an_audit_tells_of_refusals_too(bouquet: Bouquet) -> None:
    """A sentence that says why leaves the device as well."""
    with pytest.raises(BadInput, match="There is no client '009'"):
        deployed("009")
    outcome = bouquet("audit", "state")
    (row,) = [row for row in outcome.out.splitlines() if row.startswith("│ refused")]
    assert "009" in row


def test_an_audit_says_when_a_runs_own_code_wrote_it(
    bouquet: Bouquet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(Path(audit.__file__).parent))
    deployed("000", scheme="fedavg")
    assert "Code that came with the run wrote this record" in bouquet("audit", "state").out


@pytest.mark.parametrize(
    "line", [b"\xff", b'{"bytes": 9', b"[]", b"{}", b'{"bytes": 9, "personal": 1}']
)
def test_an_audit_does_not_vouch_for_a_line_it_cannot_read(bouquet: Bouquet, line: bytes) -> None:
    whole = {"round": 1, "bytes": 9, "arrays": [], "personal": [], "cpu_seconds": 1.0}
    Path("state/sent").mkdir(parents=True)
    Path("state/sent/run.jsonl").write_bytes(json.dumps(whole).encode() + b"\n" + line + b"\n")
    outcome = bouquet("audit", "state")
    assert outcome.code == 2
    assert "run.jsonl is damaged (line 2)" in outcome.err


def test_an_audit_gives_the_whole_record_to_scripts(bouquet: Bouquet) -> None:
    line = {"round": 1, "bytes": 9, "arrays": [], "personal": [], "cpu_seconds": 1.0}
    Path("state/sent").mkdir(parents=True)
    Path("state/sent/run.jsonl").write_text(json.dumps(line) + "\n")
    found = json.loads(bouquet("audit", "state", "--json").out)
    assert found == {"device": "state", "run": "run", **line}


def test_an_audit_of_nothing_is_refused(bouquet: Bouquet) -> None:
    assert bouquet("audit", ".").code == 2


# Personal models


@pytest.fixture
def run(start: Callable[..., Run]) -> Run:
    data = {"clients": 2, "partition": "iid"}
    return start(scheme="apfl", rounds=2, save_predictors=True, data=data)


def test_a_personal_model_predicts_without_a_server(bouquet: Bouquet, run: Run) -> None:
    x = np.random.default_rng(0).random((5, 1, 8, 8)).astype("float32")
    predictor = read_predictor(find_predictor(run.path, "001"))
    shaped = x.reshape(5, *predictor.shape)
    np.savez("new.npz", x=shaped)
    outcome = bouquet("node", "predict", "new.npz", "--state-dir", run.path, "--client", "001")
    assert outcome.code == 0
    expected = predictor.module(torch.from_numpy(shaped)).argmax(dim=1).tolist()
    assert [int(line) for line in outcome.out.split()] == expected


def test_predictions_are_the_classes_names(
    bouquet: Bouquet, start: Callable[..., Run], tmp_path: Path
) -> None:
    x = np.repeat([[-1.0], [1.0]], 20, axis=0).astype("float32")
    (tmp_path / "data" / "anna").mkdir(parents=True)
    np.savez(tmp_path / "data" / "anna" / "all.npz", x=x, y=np.repeat([0, 1], 20))
    (tmp_path / "data" / "classes.txt").write_text("cold\nquite warm\n")
    data = {"name": "folder", "path": str(tmp_path / "data")}
    run = start(scheme="apfl", rounds=3, save_predictors=True, data=data, model={"name": "linear"})
    np.savez("new.npz", x=x[18:22])
    outcome = bouquet("node", "predict", "new.npz", "--state-dir", run.path, "--client", "anna")
    assert outcome.out.splitlines() == ["cold", "cold", "quite warm", "quite warm"]
    (tmp_path / "new.npz").write_bytes(pickle.dumps([1]))
    outcome = bouquet("node", "predict", "new.npz", "--state-dir", run.path, "--client", "anna")
    assert outcome.code == 2
    assert "pickle" not in outcome.err
    described = bouquet("data", "describe", "folder", "-c", f"data.path={tmp_path / 'data'}")
    assert "cold:15  quite warm:15" in described.out


def test_examples_of_another_shape_are_refused(bouquet: Bouquet, run: Run) -> None:
    np.savez("new.npz", x=np.zeros((2, 3)))
    outcome = bouquet("node", "predict", "new.npz", "--state-dir", run.path, "--client", "001")
    assert outcome.code == 2
    assert "shape" in outcome.err


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_an_exported_model_is_the_clients_own(bouquet: Bouquet, run: Run) -> None:
    outcome = bouquet("export", run.path, "--client", "000", "--out", "model")
    assert outcome.out.split() == ["model/000.safetensors", "model/000.pt", "model/000.onnx"]
    predictor = read_predictor(find_predictor(run.path, "000"))
    weights = load_file("model/000.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in predictor.weights.items())
    script, x = torch.jit.load("model/000.pt"), torch.rand(4, *predictor.shape)
    torch.testing.assert_close(script(x), predictor.module(x))
    (y,) = onnxruntime.InferenceSession("model/000.onnx").run(["y"], {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), predictor.module(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_model_of_a_run_that_wrote_none_is_exported_too(bouquet: Bouquet) -> None:
    assert bouquet("simulate", *small(), "--out", "run").code == 0
    before = files(Path("run"))
    outcome = bouquet("export", "run", "--client", "001", "--out", "model")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.split()[0] == "model/001.safetensors"
    assert files(Path("run")) == before


def test_a_model_that_cannot_be_traced_is_exported_as_weights(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = read_predictor(find_predictor(run.path, "000"))
    forward = predictor.module.forward

    def untraceable(x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            raise RuntimeError("what I do depends on the numbers")
        output: torch.Tensor = forward(x)
        return output

    monkeypatch.setattr(predictor.module, "forward", untraceable)
    assert [path.name for path in export(predictor, tmp_path)] == ["000.safetensors"]
    assert [path.name for path in tmp_path.glob("000.*")] == ["000.safetensors"]


def test_a_client_without_a_model_is_named(bouquet: Bouquet, run: Run) -> None:
    outcome = bouquet("export", run.path, "--client", "nobody")
    assert outcome.code == 2
    assert "nobody" in outcome.err


def test_a_damaged_model_is_refused_by_name(run: Run) -> None:
    path = find_predictor(run.path, "000")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadFile, match=r"000\.safetensors"):
        read_predictor(path)
