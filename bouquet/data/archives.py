"""Members of archives, read without unpacking anything, and pickles without running any."""

import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.core.errors import BadInput

_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    pickle.UnpicklingError,
    # Whole, but not what it should be.
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a damaged file raises into a sentence that names it."""
    try:
        yield
    except BadInput:
        raise
    except _BROKEN as error:
        why = getattr(error, "strerror", None) or error
        why = f"{error} is missing" if isinstance(error, KeyError) else why
        raise BadInput(f"{path} cannot be read: {why}.") from error


def tar_members(path: Path, wanted: Mapping[str, str]) -> dict[str, bytes]:
    """The content of some members of a tar archive.

    Parameters
    ----------
    path : Path
        The archive.
    wanted : mapping
        By how a member's path ends, what to call it.
    """
    with open(path, "rb") as file:
        return _members(file, wanted)


def deb_members(path: Path, wanted: Mapping[str, str]) -> dict[str, bytes]:
    """The same of a Debian package: a tar archive within an ar archive."""
    with open(path, "rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise ValueError("it is not a Debian package")
        while len(header := file.read(60)) == 60:
            size = int(header[48:58])
            if header.startswith(b"data.tar"):
                return _members(io.BytesIO(file.read(size)), wanted)
            file.seek(size + size % 2, 1)
    raise ValueError("it has no data.tar")


def zip_members(path: Path, pattern: str) -> dict[str, bytes]:
    """All members of a zip archive whose path matches a pattern."""
    with zipfile.ZipFile(path) as archive:
        return {
            name: archive.read(name)
            for name in sorted(archive.namelist())
            if Path(name).match(pattern)
        }


def _members(file: Any, wanted: Mapping[str, str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        for member in archive:
            for ending, name in wanted.items():
                content = archive.extractfile(member) if member.name.endswith(ending) else None
                if content is not None:
                    found[name] = content.read()
            if len(found) == len(wanted):
                return found
    raise ValueError(f"{', '.join(sorted(set(wanted.values()) - found.keys()))} not in it")


def unzipped(content: bytes) -> bytes:
    """What gzip packed; other content as it is."""
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


class Part:
    """Stands in for an object of another library: no more than the state it was given."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _rebuilt(kind: type, base: type, state: object) -> Part:
    return Part()


def _index(kind: object, state: dict[str, Any]) -> dict[str, Any]:
    return state


def _bytes(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def _array(kind: object, shape: object, typecode: object) -> Any:
    return np.ndarray((0,), dtype=np.int8)


# Every name a pickle of arrays in old data frames asks for, and what it gets: nothing that
# opens, imports or calls anything. Whatever else a pickle asks for is refused.
_ADMITTED: dict[str, object] = {
    "copy_reg._reconstructor": _rebuilt,
    "__builtin__.object": object,
    "__builtin__.slice": slice,
    "_codecs.encode": _bytes,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "numpy.core.multiarray._reconstruct": _array,
    "pandas.core.frame.DataFrame": Part,
    "pandas.core.indexes.base.Index": Part,
    "pandas.core.indexes.base._new_Index": _index,
    "pandas.core.indexes.range.RangeIndex": Part,
    "pandas.core.internals.managers.BlockManager": Part,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, refused") from None


def arrays_of(content: bytes, encoding: str = "ASCII") -> Any:
    """What a pickle of plain values, arrays and data frames holds; it can run nothing.

    Data frames come as a :class:`Part` with their state.
    """
    return _Restricted(io.BytesIO(content), encoding=encoding).load()
