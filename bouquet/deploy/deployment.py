"""A deployment on this machine, from its keys to its summary."""

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any

from bouquet.continuing import disks_of, new_folder, resumed
from bouquet.core.errors import BadInput, RunFailed
from bouquet.data import load
from bouquet.deploy.commands import Host
from bouquet.deploy.superlink import LINK_ENDED, Deployment
from bouquet.flower.private import log
from bouquet.imports import named_paths
from bouquet.server_app.assembly import check_deployable
from bouquet.server_app.main import WRONG_INPUT
from bouquet.settings import Settings, parse
from bouquet.storage.events import Observer
from bouquet.storage.runfolder import RunFolder
from bouquet.strategies.registry import SCHEMES

# How many times a run is started before its deployment is given up.
TRIES = 4
# Seconds that devices may take to come before it is said that a run waits for them.
GRACE = 15.0
# What is said of a run whose server app, or whose SuperLink, was killed.
DEATHS = ("No heartbeat received", LINK_ENDED)


def hosts_of(settings: Settings, folder: RunFolder, policy: str = "") -> list[Host]:
    """Share out the clients as a simulation does: every n-th, so that nodes are alike.

    All have the same policy, the default one unless a file is named. What stands for the devices'
    disks is in the key ``state-dir``, or in the run's folder.
    """
    clients = sorted(load(settings.data, settings.run.seed, settings.dtype).clients)
    nodes, disks = settings.run.nodes, disks_of(settings, folder)
    if nodes > len(clients):
        raise BadInput(
            f"--nodes must be at most {len(clients)}, the number of clients, not {nodes}."
        )
    names = [f"node{number:0{len(str(nodes - 1))}d}" for number in range(nodes)]
    # Who deploys on this machine owns the devices, too.
    schemes = [stage.scheme for stage in settings.stages if stage.scheme not in SCHEMES]
    parts = [name for _, name in named_paths(settings.flat())]
    named = tuple(dict.fromkeys([*schemes, *parts]))
    return [
        Host(
            name,
            tuple(clients[number::nodes]),
            disks / name,
            settings.data.path,
            named,
            weights=settings.model.weights,
            policy=policy,
        )
        for number, name in enumerate(names)
    ]


def prepared(
    values: Mapping[str, object], nodes: int | None, resume: Path | None
) -> tuple[Settings, RunFolder]:
    """Settings and folder of a run to deploy, checked before anything is started.

    Parameters
    ----------
    values : mapping
        The user's keys.
    nodes : int, optional
        How many nodes; else as the key ``nodes`` says, or 3.
    resume : Path, optional
        The folder of a run to go on with.
    """
    keys = dict(values) | ({} if nodes is None else {"nodes": nodes})
    if resume is not None:
        folder = RunFolder(resume)
        settings = resumed(folder, keys)
        if not disks_of(settings, folder).is_dir():
            raise BadInput(f"--resume: {resume} holds no deployment's run; use bouquet simulate.")
    else:
        settings = parse(keys).pinned()
        folder = new_folder(settings)
        settings = settings.with_run(nodes=settings.run.nodes or 3, out=str(folder.path.absolute()))
    check_deployable(settings)
    return settings, folder


def deploy(
    settings: Settings, folder: RunFolder, hosts: Sequence[Host], observe: Observer
) -> dict[str, Any]:
    """Start everything, run the app, stop everything; returns the run's summary."""
    logs, new = folder.path.absolute() / "logs", not folder.path.exists()
    try:
        with _sigterm_as_interrupt(), tempfile.TemporaryDirectory(prefix="bouquet-") as private:
            deployment = Deployment(Path(private), logs)
            try:
                deployment.start_link()
                deployment.admit(hosts)
                supervise(deployment, settings, folder, observe, hosts)
            finally:
                deployment.stop()
    except BadInput:
        if new:  # a run that is refused leaves nothing behind
            shutil.rmtree(folder.path)
        raise
    return read_summary(folder)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let ``kill`` end what was started, as Ctrl-C does."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Died(RunFailed):
    """A run that ended because a process did."""


def supervise(
    deployment: Deployment,
    settings: Settings,
    folder: RunFolder,
    observe: Observer,
    hosts: Sequence[Host] = (),
) -> None:
    """Start a run and pass on its rounds; where its server's half dies, it goes on.

    The SuperLink, or the server app on it, is started again and the run resumed from its last
    checkpoint, a few times; a run that ends by an error of its own is not tried again.
    """
    for left in reversed(range(TRIES)):
        run = deployment.start_run(settings)
        try:
            pass_on_rounds(deployment, run, folder, observe, hosts)
            return
        except Died as death:
            if not left:
                raise
            log(WARNING, "%s The run goes on from its last checkpoint.", death)
            deployment.revive_link()
            settings = settings.with_run(resume=folder.checkpoint.exists())


def pass_on_rounds(
    deployment: Deployment,
    run: int,
    folder: RunFolder,
    observe: Observer,
    hosts: Sequence[Host] = (),
) -> None:
    """Pass on a run's rounds as they end, until it does; keep the nodes of ``hosts`` alive."""
    seen, reason, said = len(folder.read_events(sys.maxsize)), None, ""
    grace = time.monotonic() + GRACE
    while reason is None:
        time.sleep(1.0)
        reason = deployment.ended(run)
        waits_for = folder.read_waiting()
        if waits_for and waits_for != said and time.monotonic() > grace:
            log(WARNING, "%s", waits_for)
            said = waits_for
        events = folder.read_events(sys.maxsize)
        for event in events[seen:]:
            observe(event)
        seen = len(events)
        for host in hosts:
            deployment.keep_alive(host)
    if reason:
        why = reason.removeprefix("ServerApp failed with exception: ").rstrip(".")
        if WRONG_INPUT in why:
            raise BadInput(f"{why.partition(WRONG_INPUT)[2]}.")
        kind = Died if any(one in reason for one in DEATHS) else RunFailed
        raise kind(f"{why}; see {deployment.logs}.")


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """How a run ended."""
    path = folder.path / "summary.json"
    if not path.exists():
        raise RunFailed(f"The run ended without a result; see {folder.path / 'logs'}.")
    summary: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return summary
