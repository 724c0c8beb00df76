"""What is sent to nodes, and how they are started."""

import io
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from bouquet.core.errors import BadInput, RunFailed
from bouquet.deploy import worker
from bouquet.deploy.addresses import HOST
from bouquet.deploy.bundle import bundle, fingerprint, installed_fingerprint
from bouquet.deploy.commands import node_environment
from bouquet.deploy.deployment import pass_on_rounds, supervise
from bouquet.deploy.executors import Discreet, Forking
from bouquet.deploy.guard import SECRET, TokenCheck, executor_command, guarded_port
from bouquet.deploy.stand_ins import node_executor
from bouquet.deploy.superlink import LINK_ENDED, Deployment
from bouquet.deploy.worker import LIBRARIES, refuse_other
from bouquet.flower.private import (
    ACCESS_TOKEN_KEY,
    TASK_TYPE_TO_COMMAND,
    ExecutionSpec,
    SubprocessExecutor,
    build_fab_from_disk,
)
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
    app = build_fab_from_disk(tmp_path)
    theirs = names(app)
    texts = {name for name in theirs if name.endswith(".md") or name == "LICENSE"}
    assert names(bundle()) == theirs - texts
    assert fingerprint(app) == installed_fingerprint()  # a device takes flwr run's


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
    code = "; ".join(f"import {name}" for name in LIBRARIES)
    code += "; import sys; assert 'torch' in sys.modules; assert 'flwr_datasets' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_supernode_and_a_superlink_hold_no_pytorch() -> None:
    """Half of what a device's processes hold would be there twice."""
    code = (
        "import sys\n"
        "from bouquet.deploy import holding, keepalive, requests, stand_ins, versions\n"
        "from bouquet.flower.private import flower_superexec, flower_superlink, flower_supernode\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# A device runs the code that is installed on it


def rebuilt(changes: dict[str, bytes]) -> bytes:
    """Our bundle with some files changed, added, or, if empty, left out."""
    with zipfile.ZipFile(io.BytesIO(bundle())) as app:
        files = {name: app.read(name) for name in app.namelist()} | changes
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as app:
        for name, content in files.items():
            if content:
                app.writestr(name, content)
    return written.getvalue()


def test_the_installed_app_knows_its_bundle_however_it_is_packed() -> None:
    known = [installed_fingerprint()]
    refuse_other(bundle(), known)
    texts = {"README.md": b"words", ".info/CONTENT": b"", "pyproject.toml": b"[project]"}
    refuse_other(rebuilt(texts), known)


@pytest.mark.parametrize(
    "changes",
    [
        {"client_app/main.py": b"import os"},
        {"strategies/apfl.py": b""},
        {"client_app/more.py": b"import os"},
        {"client_app/main.pyc": b"compiled"},
        {"numpy.py": b"import os"},
    ],
    ids=["changed", "missing", "added", "compiled", "shadowing"],
)
def test_a_bundle_of_other_files_is_refused_in_a_sentence(changes: dict[str, bytes]) -> None:
    other = rebuilt(changes)
    with pytest.raises(BadInput, match="is not the one installed on this device"):
        refuse_other(other, [installed_fingerprint()])
    refuse_other(other, [installed_fingerprint(), fingerprint(other)])  # the owner lists it


@pytest.mark.parametrize("content", [b"", b"no bundle", bundle()[:-30]], ids=len)
def test_what_is_no_bundle_is_refused_in_a_sentence(content: bytes) -> None:
    with pytest.raises(BadInput, match="is no bundle"):
        refuse_other(content, [installed_fingerprint()])


def test_a_bundle_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bouquet.deploy.bundle.MOST_BYTES", 1000)
    with pytest.raises(BadInput, match="more than 1000 bytes"):
        refuse_other(bundle(), [installed_fingerprint()])


FORKING = """
import os, sys, time
from bouquet.deploy.forks import ForkServer

def work(name, text):
    assert "colorsys" in sys.modules
    there = "modulefinder" in sys.modules
    import modulefinder
    if not text:
        raise ValueError("nothing to write")
    with open(name, "w") as file:
        file.write(f"{os.getppid()} {text} {there}")

server = ForkServer(["colorsys"], work, ["modulefinder", "wave"])
server.wait()
assert "colorsys" not in sys.modules
for name, text in (("one", "first"), ("none", ""), ("other", "second")):
    server.start(name, text)
    deadline = time.monotonic() + 30
    while text and not (os.path.exists(name) and open(name).read()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)  # for its end
"""


def test_messages_processes_are_forks_of_one_that_has_imported(tmp_path: Path) -> None:
    """One that fails takes nobody with it, and none is left when whoever started it has ended.

    What the first had to import itself, the second has.
    """
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "ValueError: nothing to write" in done.stderr
    parent, *first = (tmp_path / "one").read_text().split()
    assert first == ["first", "False"]
    assert (tmp_path / "other").read_text().split() == [parent, "second", "True"]
    deadline = time.monotonic() + 10
    while Path(f"/proc/{parent}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_executor_of_a_device_is_never_flowers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        def __init__(self, libraries: object, work: object, perhaps: object) -> None:
            assert (libraries, work) == (LIBRARIES, worker.work)

        def wait(self) -> None:
            assert [type(one) for one in chosen] == [Forking]

    chosen: list[object] = []
    monkeypatch.setattr("bouquet.deploy.stand_ins.ForkServer", Server)
    monkeypatch.setattr("bouquet.flower.private.replace_executor", chosen.append)
    monkeypatch.setattr("bouquet.flower.private.flower_superexec", chosen.clear, raising=False)
    node_executor("")
    assert not chosen
    assert Forking.launch is not SubprocessExecutor.launch


# What keeps others out


def test_only_whoever_has_the_token_may_start_runs() -> None:
    check = TokenCheck("right")
    assert check.validate_tokens_in_metadata([(ACCESS_TOKEN_KEY, "right")])[0]
    for shown in ([], [(ACCESS_TOKEN_KEY, "")], [(ACCESS_TOKEN_KEY, "wrong")], [("x", "right")]):
        assert check.validate_tokens_in_metadata(shown) == (False, None)
    assert check.refresh_tokens([("x", "right")]) == (None, None)


def test_a_guarded_port_has_a_new_secret_and_key_at_every_start(tmp_path: Path) -> None:
    folder = tmp_path / "port"
    folder.mkdir(mode=0o777)
    words = guarded_port(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert guarded_port(folder) == words
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in (SECRET, "server.key"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    executor = executor_command(["flower-supernode", "--host", HOST, "--port", "9094", *words])
    assert str(folder / SECRET) in executor
    assert executor[:3] == ["flower-superexec", "--runtime-api-address", f"{HOST}:9094"]
    everywhere = ["--host", "0.0.0.0", "--port", "9094", *words]
    assert executor_command(everywhere) == executor
    assert executor_command(["flower-supernode", "--insecure"]) == []  # Flower starts it


def test_the_token_of_a_run_is_in_no_commands_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every user of a machine can see those."""
    command, said = tmp_path / "command", tmp_path / "said"
    command.write_text(f'#!/bin/sh\necho "$@" > {said}\ncat "$2" >> {said}.token\n')
    command.chmod(0o700)
    kind = next(iter(TASK_TYPE_TO_COMMAND))
    monkeypatch.setitem(TASK_TYPE_TO_COMMAND, kind, str(command))
    spec = ExecutionSpec(kind, "host:1", "secret", True, None, False, None, True, 1)
    Discreet().launch(spec)
    deadline = time.monotonic() + 20
    while not said.with_name("said.token").exists() or not said.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    while said.with_name("said.token").read_text() != "secret":
        assert time.monotonic() < deadline
    assert "secret" not in said.read_text()


class Shaky(Deployment):
    """A deployment whose server's half dies as it is told to."""

    def __init__(self, folder: Path, ends: Sequence[str | None]) -> None:
        super().__init__(folder, folder)
        self.ends, self.resumed, self.revived = list(ends), list[bool](), 0

    def start_run(self, settings: Settings, app: bytes = b"") -> int:
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
    link = Shaky(tmp_path, ends)
    with pytest.raises(RunFailed, match=error) if error else nullcontext():
        supervise(link, parse({}), folder, lambda event: None)
    assert link.resumed == resumed
    assert link.revived == len(resumed) - 1


def test_a_deployment_says_whom_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and not while devices may still be coming."""
    told: list[str] = []
    monkeypatch.setattr("bouquet.deploy.deployment.time.sleep", lambda seconds: None)
    monkeypatch.setattr(
        "bouquet.deploy.deployment.log", lambda level, *words: told.append(words[1])
    )
    folder = RunFolder(tmp_path)
    folder.write_waiting("Waiting for clients: 1 of 2 are there.")
    for grace, said in ((3600.0, 0), (-1.0, 1)):
        monkeypatch.setattr("bouquet.deploy.deployment.GRACE", grace)
        link = Shaky(tmp_path, [None, None, ""])
        pass_on_rounds(link, 1, folder, lambda event: None)
        assert told == ["Waiting for clients: 1 of 2 are there."] * said
