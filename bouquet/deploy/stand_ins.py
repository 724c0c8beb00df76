"""Flower's commands as our deployments run them: the same, but for what Flower has no option for.

``install_for_node`` and ``install_for_link`` write them into a folder that is first on PATH. They
differ from Flower's in this:

- ``flower-superlink`` asks whoever starts runs for the owner's token, holds looks for work until
  there is some and uses its database calmly, so that it carries more nodes, and writes down which
  Bouquet each node runs;
- ``flower-supernode`` says which Bouquet it runs, notices that its connection is dead, and makes
  another;
- ``flower-superlink`` and ``flower-supernode`` start their executor with the secret given;
- ``flower-superexec`` of a device starts processes that answer with the installed app, of a
  SuperLink such as do not show their token to every user of the machine.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from bouquet.deploy.forks import ForkServer, forked
from bouquet.deploy.guard import executor_command


def install_for_node(folder: Path, policy: str = "") -> Path:
    """Write a node's commands; returns the folder to put first on PATH."""
    _write(folder, "flower-supernode", f"supernode({policy!r})")
    return _write(folder, "flower-superexec", f"node_executor({policy!r})")


def install_for_link(folder: Path, token: Path) -> Path:
    """Write a SuperLink's commands, which know the file of its owner's token; likewise."""
    _write(folder, "flower-superlink", f"superlink({str(token)!r})")
    return _write(folder, "flower-superexec", "link_executor()")


def _write(folder: Path, name: str, call: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / name
    # A process that multiprocessing starts reads this file too, without doing what it says.
    command.write_text(
        f"#!{sys.executable}\n"
        'if __name__ == "__main__":\n'
        "    from bouquet.deploy import stand_ins\n\n"
        f"    stand_ins.{call}\n",
        "utf-8",
    )
    command.chmod(0o700)
    return folder


def supernode(policy: str) -> None:
    """Run a SuperNode and its executor beside it, whose processes share what they have imported."""
    from bouquet.deploy.keepalive import keep_alive
    from bouquet.deploy.requests import ask_through
    from bouquet.deploy.versions import TellVersion
    from bouquet.flower.private import answer_for_killed_apps, flower_supernode

    _start_executor(sys.argv, lambda: node_executor(policy))
    keep_alive()
    answer_for_killed_apps()
    ask_through(TellVersion())
    flower_supernode()


def superlink(token: str) -> None:
    """Run a SuperLink that obeys whoever shows the token, with its executor beside it."""
    from bouquet.deploy.guard import TokenCheck
    from bouquet.deploy.holding import THREADS, Bells, HoldLooks
    from bouquet.deploy.requests import serve_through
    from bouquet.deploy.versions import NoteVersion
    from bouquet.flower.private import (
        calm_database,
        flower_superlink,
        replace_account_check,
        tell_of_messages,
    )

    bells = Bells()
    tell_of_messages(bells.ring)
    serve_through(THREADS, NoteVersion(Path(token).parent), HoldLooks(bells))
    calm_database()
    replace_account_check(TokenCheck(Path(token).read_text("utf-8").strip()))
    _start_executor(sys.argv, link_executor)
    flower_superlink()


def _start_executor(words: Sequence[str], run: Callable[[], None]) -> None:
    """Start the executor, which ends with this process; also where nobody has buried that."""
    command = executor_command(words)
    if not command:
        return
    # Before the fork, so that both share it.
    from bouquet.flower.private import flower_superexec  # noqa: F401

    parent = os.getpid()

    def executor() -> None:
        sys.argv = [*command, "--parent-pid", str(parent)]
        run()

    number = forked(executor)

    @atexit.register
    def end() -> None:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)


def node_executor(policy: str) -> None:
    """Run a device's executor, whose processes answer with the installed app."""
    from bouquet.deploy.bundle import installed_fingerprint
    from bouquet.deploy.executors import Forking
    from bouquet.deploy.worker import LIBRARIES, PERHAPS, work
    from bouquet.flower.private import flower_superexec, replace_executor

    server = ForkServer(LIBRARIES, work, PERHAPS)
    replace_executor(Forking(server, installed_fingerprint(), policy))
    server.wait()  # a task's token is good for a while only: none is asked for before
    flower_superexec()


def link_executor() -> None:
    """Run a SuperLink's executor."""
    from bouquet.deploy.executors import Discreet
    from bouquet.flower.private import flower_superexec, replace_executor

    replace_executor(Discreet())
    flower_superexec()
