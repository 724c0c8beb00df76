"""Flower's commands as our deployments run them: the same, but for what Flower has no option for.

``install_for_node`` and ``install_for_link`` write them into a folder that is first on PATH. They
differ from Flower's in this:

- ``flower-superlink`` asks whoever starts runs for the owner's token, and uses its database calmly,
  so that it carries more nodes;
- ``flower-supernode`` notices that its connection is dead, and makes another;
- ``flower-superlink`` and ``flower-supernode`` start their executor with the secret given;
- ``flower-superexec`` of a device starts processes that answer with the installed app, of a
  SuperLink such as do not show their token to every user of the machine.
"""

import atexit
import os
import subprocess
import sys
from collections.abc import Sequence
from logging import WARNING
from pathlib import Path

from bouquet.deploy.guard import executor_command


def install_for_node(folder: Path, policy: str = "") -> Path:
    """Write a node's commands; returns the folder to put first on PATH."""
    _write(folder, "flower-supernode", "supernode()")
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


def supernode() -> None:
    """Run a SuperNode, with its executor beside it."""
    from bouquet.deploy.keepalive import keep_alive
    from bouquet.flower.private import flower_supernode

    _start_executor(sys.argv)
    keep_alive()
    flower_supernode()


def superlink(token: str) -> None:
    """Run a SuperLink that obeys whoever shows the token, with its executor beside it."""
    from bouquet.deploy.guard import TokenCheck
    from bouquet.flower.private import calm_database, flower_superlink, replace_account_check

    calm_database()
    replace_account_check(TokenCheck(Path(token).read_text("utf-8").strip()))
    _start_executor(sys.argv)
    flower_superlink()


def _start_executor(words: Sequence[str]) -> None:
    """Start the executor, which ends with this process; also where nobody has buried that."""
    command = executor_command(words)
    if command:
        executor = subprocess.Popen([*command, "--parent-pid", str(os.getpid())])
        atexit.register(executor.terminate)


def node_executor(policy: str) -> None:
    """Run a device's executor, whose processes answer with the installed app."""
    from bouquet.deploy.bundle import installed_fingerprint
    from bouquet.deploy.executors import Forking, Spawning
    from bouquet.flower.private import flower_superexec, log, replace_executor

    known = installed_fingerprint()
    try:
        replace_executor(Forking(known, policy))
    except OSError as error:  # such as a TMPDIR too long for the name of a socket
        log(WARNING, "Processes for messages start from nothing, which is slow: %s", error)
        replace_executor(Spawning(known, policy))
    flower_superexec()


def link_executor() -> None:
    """Run a SuperLink's executor."""
    from bouquet.deploy.executors import Discreet
    from bouquet.flower.private import flower_superexec, replace_executor

    replace_executor(Discreet())
    flower_superexec()
