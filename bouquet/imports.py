"""Other people's parts: by import path, by file, or, in one process, as the objects they are.

``package.module:Name`` and ``./file.py:Name`` are right wherever the code is; ``object:3`` is the
third object that somebody in this process offered.
"""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from bouquet.core.errors import BadInput

OFFERED: dict[str, Any] = {}
# The keys, beside those that name schemes, whose value may be a path.
KEYS = ("data.name", "model.name", "loss", "metric", "augment")

# When a file was last changed, and its size.
Stamp = tuple[int, int]
# In a run, the files that it has looked at, as they were.
_files: ContextVar[dict[str, Stamp] | None] = ContextVar("_files", default=None)


@contextmanager
def unchanging(run: int) -> Iterator[None]:
    """While the block lasts, files are what the run first found them to be.

    A run of an hour asks for its model more than once. A file that is edited meanwhile, for the
    next run, must not change this one half-way.

    Parameters
    ----------
    run : int
        Flower's number of the run.
    """
    before = _files.set(_files_of(run))
    try:
        yield
    finally:
        _files.reset(before)


@functools.lru_cache(maxsize=64)
def _files_of(run: int) -> dict[str, Stamp]:
    return {}


def stamp(path: str) -> Stamp:
    """What changes when a file does; zeros for none."""
    whole = os.path.abspath(path) if path else path
    known = _files.get()
    if known is not None and whole in known:
        return known[whole]
    try:
        found = os.stat(whole)
    except OSError:
        return (0, 0)
    now = (found.st_mtime_ns, found.st_size)
    return now if known is None else known.setdefault(whole, now)


def offer(part: Any) -> str:
    """A name for an object: its import path where it has one, else one for this process alone."""
    module, name = getattr(part, "__module__", ""), getattr(part, "__qualname__", "")
    if name and module and module != "__main__":
        found: Any = sys.modules.get(module)
        for one in name.split("."):
            found = getattr(found, one, None)
        if found is part:
            return f"{module}:{name}"
    OFFERED[str(len(OFFERED) + 1)] = part
    return f"object:{len(OFFERED)}"


def is_offered(name: str) -> bool:
    """Whether a name is of this process alone."""
    return name.startswith("object:")


def is_path(name: str) -> bool:
    """Whether a name is a path to somebody's own part."""
    return ":" in name


def named_paths(values: Mapping[str, object]) -> list[tuple[str, str]]:
    """The paths that flat keys name, schemes aside, each with its key."""
    found = [(key, str(values.get(key, ""))) for key in KEYS]
    return [(key, name) for key, name in found if is_path(name)]


def absolute(name: str) -> str:
    """A path by file as one that is right in any folder; other names as they are."""
    file, colon, part = name.rpartition(":")
    return f"{Path(file).absolute()}{colon}{part}" if file.endswith(".py") else name


def called(name: str) -> str:
    """What people and folders call a part: of a path only its end; other names as they are."""
    if is_offered(name):
        return name.replace(":", "-")
    return name.rpartition(":")[2]


def imported(
    name: str, what: str, around: Callable[[Callable[[], Any]], Any] = lambda run: run()
) -> Any:
    """The object that a path names, or a sentence that says why not.

    Only what is there where the code runs can be named: nothing is fetched, and nothing but a
    name arrives in a message.

    Parameters
    ----------
    name : str
        ``package.module:Name`` or ``file.py:Name``.
    what : str
        The key that names it, for the sentence.
    around : callable
        Runs the import; for what an import needs around it.
    """
    module, _, part = name.rpartition(":")
    if is_offered(name) and part in OFFERED:
        return OFFERED[part]
    try:
        found = around(lambda: _file(module) if module.endswith(".py") else _package(module))
        for one in part.split("."):
            found = getattr(found, one)
    except Exception as error:  # whatever the user's code raises
        raise BadInput(f"{what} {name!r} cannot be imported: {error}.") from error
    return found


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A command is not started from the folder it is called in; its user thinks it is.
        here = os.getcwd()
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        return importlib.import_module(name)


def _file(file: str) -> ModuleType:
    path = Path(file).absolute()
    return _loaded(path, stamp(str(path)))


@functools.lru_cache
def _loaded(path: Path, changed: Stamp) -> ModuleType:
    """A file as a module, which may import what is beside it."""
    mark = hashlib.sha256(f"{path}:{changed}".encode()).hexdigest()[:12]
    name = f"{path.stem}_{mark}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    beside = str(path.parent)
    if beside not in sys.path:
        sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
