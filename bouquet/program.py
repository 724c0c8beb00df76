"""What a program says of runs, as the flat keys that everyone uses, and its data as files."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bouquet.core.errors import BadInput
from bouquet.data.memory import write_clients
from bouquet.imports import offer
from bouquet.objects import ModelLike, SchemeLike, factory, flat, told_of
from bouquet.storage.atomic import made


def values_of(
    scheme: SchemeLike,
    data: object,
    model: ModelLike,
    keys: Mapping[str, Any],
    out: str | Path | None,
) -> dict[str, object]:
    """All that was said, as flat keys."""
    values = keys_of_program(scheme, keys)
    if in_memory(data):
        values["data.name"] = "folder"
    elif data:
        values["data.name"] = offer(data) if callable(data) else data
    if not isinstance(model, str):
        values["model.name"] = offer(factory(model))
    elif model:
        values["model.name"] = model
    if out is not None:
        values["out"] = str(out)
    return values


def keys_of_program(scheme: SchemeLike, keys: Mapping[str, Any]) -> dict[str, object]:
    """A scheme and keys as a program says them, as the flat keys that ``parse`` takes."""
    values = flat(keys)
    if "clients" in values:
        values["data.clients"] = values.pop("clients")
    return (told_of(scheme) if scheme else {}) | values


def resumable(resume: str | Path | None, out: str | Path | None, data: object) -> Path | None:
    """The folder to go on in, which has its data and its place already."""
    if resume is None:
        return None
    if out is not None or in_memory(data):
        raise BadInput("resume goes on in a folder with the data it has: leave out and data away.")
    return Path(resume)


def in_memory(data: object) -> bool:
    """Whether data are neither a name nor a function, so that a run's folder has to hold them."""
    return not isinstance(data, str) and not callable(data)


def held_by(folder: Path) -> dict[str, object]:
    """The keys of data that a program had in memory, and that are in a folder of runs now."""
    return {"out": str(folder), "data.path": str(folder.absolute() / "data")}


@contextmanager
def written(data: object, folder: Path) -> Iterator[None]:
    """Write data that are in memory to a folder; of what never began to run nothing is left."""
    if not in_memory(data):
        yield
        return
    place = folder / "data"
    if place.exists():
        raise BadInput(f"out: {place} is there already; choose another folder.")
    with made(folder):
        try:
            write_clients(data, place)
            yield
        except BaseException:
            if not any(folder.rglob("config.toml")):
                shutil.rmtree(place, ignore_errors=True)
            raise
