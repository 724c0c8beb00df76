"""How ``flower-superexec`` starts the process of a message or a run, with us.

Flower's SuperNode hands messages to ``flower-superexec``, which starts a new process for each;
that process imports for two to three seconds before it does a tenth of a second of work, and
imports what the SuperLink sent. A device's executors start one that answers with the installed app
(``bouquet.deploy.worker``); the usual one forks it from a process that has imported. Every message
still gets a process of its own, so nothing is left over from the one before.
"""

import multiprocessing
import subprocess
import tempfile
from multiprocessing import forkserver

from bouquet.deploy.worker import LIBRARIES, work
from bouquet.flower.private import (
    TASK_TYPE_TO_COMMAND,
    ExecutionSpec,
    LaunchResult,
    SubprocessExecutor,
)


class Spawning(SubprocessExecutor):
    """Start a message's process from nothing.

    Whatever kind of task a server makes of a run, what is started is our worker. Its token is
    handed over in a pipe: the words of a command are there for every user of a machine to see.

    Parameters
    ----------
    known : str
        The fingerprint of the installed app's bundle.
    policy : str
        The owner's file.
    """

    def __init__(self, known: str, policy: str) -> None:
        self._known, self._policy = known, policy
        self._context: multiprocessing.context.BaseContext = multiprocessing.get_context("spawn")

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of one message."""
        words = ["--token", spec.token, *_words(spec)]
        self._context.Process(  # type: ignore[attr-defined]  # every context has it
            target=work, args=(words, self._known, self._policy)
        ).start()
        return LaunchResult.accepted()


class Forking(Spawning):
    """Start a message's process as a fork of one that has imported.

    Python's fork server is a process without threads that does nothing else, so that a fork
    copies no lock somebody holds.
    """

    def __init__(self, known: str, policy: str) -> None:
        super().__init__(known, policy)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(LIBRARIES))
        forkserver.ensure_running()
        # A task's token is good for a while only: none is asked for before a fork is quick.
        first = self._context.Process(target=_nothing)
        first.start()
        first.join()


class Discreet(SubprocessExecutor):
    """Start a SuperLink's processes as Flower does, with their tokens in no command's words."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of a run."""
        with tempfile.TemporaryFile() as token:
            token.write(spec.token.encode())
            token.seek(0)
            words = ["--token-file", f"/dev/fd/{token.fileno()}", *_words(spec)]
            quiet = subprocess.DEVNULL if spec.suppress_output else None
            subprocess.Popen(
                [TASK_TYPE_TO_COMMAND[spec.task_type], *words],
                stdout=quiet,
                stderr=quiet,
                pass_fds=(token.fileno(),),
            )
        return LaunchResult.accepted()


def _nothing() -> None:
    """What the first fork does."""


def _words(spec: ExecutionSpec) -> list[str]:
    words = ["--runtime-api-address", spec.runtime_api_address]
    if spec.insecure:
        words.append("--insecure")
    elif spec.root_certificates_path is not None:
        words += ["--root-certificates", spec.root_certificates_path]
    if spec.parent_pid is not None:
        words += ["--parent-pid", str(spec.parent_pid)]
    return words
