"""How ``flower-superexec`` starts the process of a message or a run, with us.

Flower's SuperNode hands messages to ``flower-superexec``, which starts a new process for each;
that process imports for two to three seconds before it does a tenth of a second of work, and
imports what the SuperLink sent. A device's executor has one forked that answers with the installed
app (``bouquet.deploy.worker``) from a process that has imported. Every message still gets a process
of its own, so nothing is left over from the one before.
"""

import subprocess
import tempfile

from bouquet.deploy.forks import ForkServer
from bouquet.flower.private import (
    TASK_TYPE_TO_COMMAND,
    ExecutionSpec,
    LaunchResult,
    SubprocessExecutor,
)


class Forking(SubprocessExecutor):
    """Start a message's process as a fork of one that has imported.

    Whatever kind of task a server makes of a run, what is started is our worker.

    Parameters
    ----------
    server : ForkServer
        Which does our worker's work.
    known : str
        The fingerprint of the installed app's bundle.
    policy : str
        The owner's file.
    """

    def __init__(self, server: ForkServer, known: str, policy: str) -> None:
        self._server, self._known, self._policy = server, known, policy

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of one message."""
        words = ["--token", spec.token, *_words(spec)]
        self._server.start(words, self._known, self._policy)
        return LaunchResult.accepted()


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


def _words(spec: ExecutionSpec) -> list[str]:
    words = ["--runtime-api-address", spec.runtime_api_address]
    if spec.insecure:
        words.append("--insecure")
    elif spec.root_certificates_path is not None:
        words += ["--root-certificates", spec.root_certificates_path]
    if spec.parent_pid is not None:
        words += ["--parent-pid", str(spec.parent_pid)]
    return words
