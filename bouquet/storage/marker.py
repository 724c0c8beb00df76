"""Whether a folder is the same one everywhere: a marker that only those find who share it.

Two machines may have a folder of the same name and write to it, each to its own, and nobody would
notice.
"""

import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bouquet.core.errors import BadInput

PREFIX = ".marker-"


class NotShared(BadInput):
    """A folder that is another one on this machine."""


@contextmanager
def marked(*folders: Path) -> Iterator[list[str]]:
    """Leave a marker in each folder for a while; gives the markers' paths.

    Folders that had to be made are gone afterwards, unless somebody has written to them.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_marker(folder.absolute())) for folder in folders]


@contextmanager
def _marker(folder: Path) -> Iterator[str]:
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{PREFIX}*"):  # of a run that was killed
            old.unlink(missing_ok=True)
        # No other name would do: a copy of the folder may have an older one.
        marker = folder / f"{PREFIX}{secrets.token_hex(8)}"
        marker.touch()
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}).") from error
    try:
        yield str(marker)
    finally:
        with suppress(OSError):
            marker.unlink()
            for place in made:
                place.rmdir()


def check_shared(markers: Sequence[str]) -> None:
    """Refuse to work where any of somebody's markers is not to be seen."""
    for marker in map(Path, markers):
        if not marker.exists():
            raise NotShared(
                f"{marker.parent} on {socket.gethostname()} is another folder than the run's: all "
                "machines of a cluster must share it; name one that they do with --out or "
                "state-dir."
            )
