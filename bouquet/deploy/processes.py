"""Processes and ports on this machine."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bouquet.deploy.addresses import HOST


def end(process: "subprocess.Popen[bytes]", how: signal.Signals) -> None:
    """Send a signal to a process and those it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def processes_of(home: Path) -> Iterator[Path]:
    """The entries in /proc of what we gave a home, and of all they started."""
    mark = f"FLWR_HOME={home}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                yield entry


def end_strays(home: Path) -> None:
    """Kill what a process of ours left behind, told by the home we gave it.

    Flower puts apps in sessions of their own, where they watch for their parent's end, but take
    a parent that nobody has buried for alive. Where there is no /proc, that watch must do.
    """
    for entry in processes_of(home):
        with suppress(OSError):
            os.kill(int(entry.name), signal.SIGKILL)


def free_port() -> int:
    """A port nobody uses."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
