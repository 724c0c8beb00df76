"""A process that has imported all that a message needs, and forks one for each.

It has no threads and does nothing else, so that a fork copies no lock that somebody holds.
"""

import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

READY = b"."


def forked(work: Callable[[], None]) -> int:
    """Do some work in a fork of this process, which must have no threads; returns its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # a fork's look for garbage would write to all that it shares
    number = os.fork()
    if number == 0:
        _end_with(work)
    return number


def _end_with(work: Callable[[], None]) -> NoReturn:
    """What a process ends with that is none of its parent's business."""
    status = 1
    try:
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class ForkServer:
    """Forks processes that do a piece of work each; it ends with whoever started it.

    Parameters
    ----------
    libraries : sequence of str
        Modules to import before the first fork.
    work : callable
        What a process does, with words that are handed to it in secret: the words of a command
        are there for every user of a machine to see.
    perhaps : sequence of str
        Modules that take much memory and that not all work needs: imported once a process has.
    """

    def __init__(
        self, libraries: Sequence[str], work: Callable[..., None], perhaps: Sequence[str] = ()
    ) -> None:
        self._ours, theirs = socket.socketpair()

        def serve() -> None:
            self._ours.close()
            _serve(theirs, libraries, work, perhaps)

        forked(serve)
        theirs.close()

    def wait(self) -> None:
        """Until it has imported; whoever asks earlier waits longer."""
        if self._ours.recv(1) != READY:
            raise OSError("the process that messages are forked from has ended")

    def start(self, *words: object) -> None:
        """Have a process do the work with some words."""
        self._ours.sendall(json.dumps(words).encode() + b"\n")


def _serve(
    asked: socket.socket,
    libraries: Sequence[str],
    work: Callable[..., None],
    perhaps: Sequence[str],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a process has ended
    for name in libraries:
        import_module(name)
    needed = _Needed(perhaps)
    try:
        asked.sendall(READY)
    except BrokenPipeError:  # whoever started it has ended meanwhile
        return
    with asked.makefile("rb") as lines:
        for line in lines:
            words = json.loads(line)
            needed.catch_up()

            def one(words: list[object] = words) -> None:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # what it starts, it waits for
                asked.close()
                try:
                    work(*words)
                finally:
                    needed.tell()

            forked(one)


class _Needed:
    """Which of some modules work has imported: what one fork did, the next shall not have to."""

    def __init__(self, perhaps: Sequence[str]) -> None:
        self._lacking = [name for name in perhaps if name not in sys.modules]
        self._heard, self._told = os.pipe()
        os.set_blocking(self._heard, False)

    def tell(self) -> None:
        """In a fork that has done its work: say what it imported."""
        found = [name for name in self._lacking if name in sys.modules]
        os.write(self._told, "".join(f"{name}\n" for name in found).encode())

    def catch_up(self) -> None:
        """Import what a fork has said that it needed."""
        said = b""
        with suppress(BlockingIOError):
            said = os.read(self._heard, 2**16)
        for name in {*self._lacking} & {*said.decode().split()}:
            import_module(name)
            self._lacking.remove(name)
