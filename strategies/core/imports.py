"""Other people's parts, by import path or by file: ``package.module:Name``, ``./file.py:Name``."""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from strategies.core.errors import BadInput


def is_path(name: str) -> bool:
    """Whether a name is a path to somebody's own part."""
    return ":" in name


def absolute(name: str) -> str:
    """A path by file as one that is right in any folder; other names as they are."""
    file, colon, part = name.rpartition(":")
    return f"{Path(file).absolute()}{colon}{part}" if file.endswith(".py") else name


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
    return _loaded(path, path.stat().st_mtime_ns)


@functools.lru_cache
def _loaded(path: Path, changed: int) -> ModuleType:
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
