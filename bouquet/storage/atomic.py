"""Files that are there whole or not at all, whenever a process or the power dies."""

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# The name write_aside gives, which ends with the number of the process that writes.
_ASIDE = re.compile(r"\..+\.([0-9]{1,10})\.tmp")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step that also survives a power cut."""
    put(write_aside(path, content), path)


def write_aside(path: Path, content: bytes, safe: bool = True) -> Path:
    """Write a file's new content beside it; :func:`put` makes it the file.

    It is safe on disk then, unless the caller sees to it, of many files at once (:func:`settle`).
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            if safe:
                os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
    return aside


def settle(files: Sequence[Path]) -> None:
    """Have the content of files safe on disk: of many at once, where the system can."""
    if len(files) > 1 and _settled_at_once(files[0]):
        return
    for one in files:
        _sync(one)


def _settled_at_once(file: Path) -> bool:
    """Whether all that was written where a file is is on disk now: a wait instead of one a file."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "syncfs"):  # Linux alone has it
        return False
    opened = os.open(file, os.O_RDONLY)
    try:
        return bool(library.syncfs(opened) == 0)
    finally:
        os.close(opened)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder; where the block fails and leaves it empty, it is gone as it came."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for one in new:
            with suppress(OSError):  # somebody's is in it by now
                one.rmdir()
        raise


def sweep(*folders: Path) -> None:
    """Remove what a writer that was killed left aside in folders of its own.

    What a process that still runs has written is left alone, unless it is this one, which
    sweeps before it writes; so is every name :func:`write_aside` does not give.
    """
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            found = _ASIDE.fullmatch(path.name)
            if found and (int(found[1]) == os.getpid() or not _runs(int(found[1]))):
                with suppress(OSError):
                    path.unlink()


def _runs(process: int) -> bool:
    """Whether a process of this number is there, anybody's."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def put(aside: Path, path: Path) -> None:
    """Make the content written aside the file."""
    try:
        os.replace(aside, path)
    except OSError:
        aside.unlink()
        raise
    _sync(path.parent)
