"""A device's executor with Python, Flower and PyTorch loaded once, not for every message.

Flower's SuperNode hands messages to ``flower-superexec``, which starts a new process for each;
that process imports for two to three seconds before it does a tenth of a second of work. This
is the same command with another executor: it forks the process from one that has imported.
Every message still gets a process of its own, so nothing is left over from the one before.
"""

import multiprocessing
import sys
from collections.abc import Sequence
from logging import WARNING
from multiprocessing import forkserver

from bouquet.flower.private import ExecutionSpec, LaunchResult, SubprocessExecutor, log

# Not our own code: the app that runs is the one the SuperLink sends.
# torch._dynamo: what recording a step imports, for a second of every message.
LIBRARIES = (
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.clientapp",
    "torch",
    "torch._dynamo",
    "safetensors.torch",
)


class ForkExecutor(SubprocessExecutor):
    """Start a task's process as a fork of one that has imported.

    Python's fork server is a process without threads that does nothing else, so that a fork
    copies no lock somebody holds.

    Parameters
    ----------
    modules : sequence of str
        What to import.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(modules))
        forkserver.ensure_running()  # the first message finds it ready

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of one message."""
        words = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
        if spec.insecure:
            words.append("--insecure")
        elif spec.root_certificates_path is not None:
            words += ["--root-certificates", spec.root_certificates_path]
        if spec.parent_pid is not None:
            words += ["--parent-pid", str(spec.parent_pid)]
        self._context.Process(target=_work, args=(words,)).start()
        return LaunchResult.accepted()


def _work(words: Sequence[str]) -> None:
    from bouquet.flower.private import flwr_clientapp

    sys.argv = ["flwr-clientapp", *words]
    flwr_clientapp()


def main(modules: Sequence[str]) -> None:
    """Run Flower's command with our executor in place of its own."""
    from bouquet.flower.private import flower_superexec, replace_executor

    try:
        executor = ForkExecutor(modules)
    except OSError as error:  # such as a TMPDIR too long for the name of a socket
        log(WARNING, "Processes for messages start from nothing, which is slow: %s", error)
    else:
        replace_executor(executor)
    flower_superexec()
