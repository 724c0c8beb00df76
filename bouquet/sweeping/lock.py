"""One sweep at a time in a folder: its own processes, and nobody else's."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bouquet.core.errors import BadInput

LOCK = ".lock"
PATIENCE = 5.0  # seconds for processes of a sweep that was killed to find out and end


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold a folder; yields a file whose every holder holds it, also when this process is gone."""
    held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait(held, folder)
        yield held
    finally:
        os.close(held)


def _wait(held: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # a system without it, where the user must see to it
        return
    limit = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > limit:
                raise BadInput(
                    f"{folder} is at work in another process; wait, or end it."
                ) from None
            time.sleep(0.1)
