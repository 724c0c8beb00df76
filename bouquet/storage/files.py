"""Files that are there whole or not at all, and that know when they were damaged.

A sealed file is a safetensors file whose metadata say what it is and carry a
checksum over themselves and every tensor. Reading one runs no code.
"""

import ctypes
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from safetensors import safe_open
from safetensors.torch import save

from bouquet.core.errors import BadInput
from bouquet.core.trees import Tree, digest, sha256

# The name write_aside gives, which ends with the number of the process that writes.
_ASIDE = re.compile(r"\..+\.([0-9]{1,10})\.tmp")

# Which examples a client's two models get right; written by nodes, read by reports.
OUTCOMES = "bouquet-outcomes-1"


class BadFile(BadInput):
    """A file that cannot be used; it is left as it is."""


class Damaged(BadFile):
    """A file whose content is not what was written."""


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


def seal(kind: str, header: Mapping[str, str], tensors: Tree) -> bytes:
    """The content of a sealed file of a kind, such as ``bouquet-checkpoint-1``."""
    words = {"format": kind, **header}
    whole = _apart(tensors)
    return bytes(save(whole, metadata=words | {"checksum": _checksum(words, whole)}))


def _apart(tensors: Tree) -> Tree:
    """Tensors that share no memory, as safetensors wants them; copied only where they do."""
    apart: Tree = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        whole = value.contiguous()
        memory = whole.untyped_storage()
        if memory.nbytes() != whole.nbytes or memory.data_ptr() in seen:
            whole = whole.clone()
        seen.add(whole.untyped_storage().data_ptr())
        apart[name] = whole
    return apart


def unseal(path: Path, kind: str) -> tuple[dict[str, str], Tree]:
    """Header and tensors of a sealed file, or a sentence that names it and says why not."""
    words, tensors = _open(path, kind, contents=True)
    checksum = words.pop("checksum", "")
    try:
        whole = checksum == _checksum(words, tensors)
    except TypeError:  # tensors of a type that nothing here writes
        whole = False
    if not whole:
        raise Damaged(f"{path} is damaged (its checksum is wrong); it was left as it is.")
    return words, tensors


def check_kind(path: Path, kind: str) -> None:
    """Refuse what is not a whole file of a kind, without reading all of it."""
    _open(path, kind, contents=False)


def file_name(word: str) -> str:
    """A word, such as a client's id, as the name of a file: never a path, never ambiguous."""
    name = quote(word, safe="").replace(".", "%2E")
    return name if len(name) <= 200 else f"{name[:130]}-{digest([word.encode()])}"


def _open(path: Path, kind: str, contents: bool) -> tuple[dict[str, str], Tree]:
    try:
        with safe_open(path, framework="pt") as file:
            words = dict(file.metadata() or {})
            names = list(file.keys()) if contents else []
            tensors = {name: file.get_tensor(name) for name in names}
    except Exception as error:  # whatever safetensors and torch make of damaged bytes
        raise Damaged(f"{path} is damaged ({error}); it was left as it is.") from error
    if words.get("format") != kind:
        found = words.get("format", "an unknown format")
        raise BadFile(f"{path} is {found}, not {kind}; it was left as it is.")
    return words, tensors


def _checksum(words: Mapping[str, str], tensors: Tree) -> str:
    header = json.dumps(dict(words), sort_keys=True).encode()
    return digest([header, sha256(tensors).encode()])
