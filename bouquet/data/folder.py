"""A user's own data: a directory a client, or a table with a column that says whose."""

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES
from bouquet.data.archives import reading
from bouquet.data.examples import drawn, refuse_gaps, refuse_labels
from bouquet.data.federated import DataConfig, FederatedData, Split, numbered
from bouquet.data.partitions import split_clients
from bouquet.data.table import CLASSES as NAMES
from bouquet.data.table import named_classes, table, table_inputs
from bouquet.data.targets import kind_of, labels_of, refuse_strange

Array = NDArray[np.generic]
# Inputs, and labels: int64 classes, or float64 values.
Examples = tuple[Array, Array]

_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}


def folder(
    config: DataConfig, seed: int, dtype: torch.dtype, only: Sequence[str] | None = None
) -> FederatedData:
    """The data in ``data.path``: a CSV file, or a directory with one for every client.

    Parameters
    ----------
    config : DataConfig
        Where it is and what clients hold out.
    seed : int
        Decides the draws.
    dtype : torch.dtype
        Of the inputs, unless they are whole numbers.
    only : sequence of str, optional
        The clients to load; nobody else's directory is opened, nor need it be there.
    """
    if not config.path:
        raise BadInput("data.path must name a CSV file or a directory of clients, not ''.")
    path = Path(config.path)
    if path.is_file():
        return table(config, seed, dtype, path, only)
    if not path.is_dir():
        raise BadInput(f"data.path {config.path!r} is neither a file nor a directory.")
    if config.downsample:
        raise BadInput(
            f"data.downsample must be 0 for a directory of clients, not {config.downsample}: what "
            "they have is theirs."
        )
    everyone = _clients(path) if only is None else sorted(only)
    most = config.max_clients if only is None else 0
    names = [everyone[number] for number in drawn(len(everyone), most, seed)]
    classes = named_classes(path)
    if classes is None and only is not None and kind_of(config) == CLASSES:
        raise BadInput(
            f"{path / NAMES} is missing: a device that has its own data alone cannot know all "
            "classes without that file, a name in each line."
        )
    places = [path / name for name in names]
    for name, place in zip(names, places, strict=True):
        # A client's name is never a way out of the directory.
        if name in (".", "..") or place.parent != path or not place.is_dir():
            raise BadInput(f"data.path {config.path!r} has no directory of client {name!r}.")
    if classes is None:
        classes = _found_classes(config, places)
    parts = [_client(config, place, classes) for place in places]
    return joined(config, seed, dtype, names, parts, classes)


def read_inputs(file: Path, inputs: Sequence[str] = ()) -> Tensor:
    """Examples as :func:`folder` would take them, without labels.

    Parameters
    ----------
    file : Path
        A ``.npz`` file with an array ``x``, or a CSV file.
    inputs : sequence of str
        What the model's inputs are called, for a CSV file.
    """
    if file.suffix.lower() == ".csv":
        if not inputs:
            raise BadInput(f"{file}: the model was not trained on a CSV file and knows no columns.")
        return table_inputs(file, inputs)
    (x,) = _members(file, "x")
    return _tensor(_checked_inputs(x, file), torch.float64)


def split_up(data: FederatedData, path: Path) -> None:
    """Write any data set as ``data.name=folder`` reads it, a directory for every client.

    So each device can be given its own directory and ``classes.txt``, and no more.

    Parameters
    ----------
    data : FederatedData
        A data set with classes.
    path : Path
        The directory to make; it must not be there yet.
    """
    for client in data.clients:
        if Path(client).name != client or client[0] in "._":
            raise BadInput(f"Client {client!r} cannot be the name of a directory.")
    try:
        path.mkdir(parents=True)
    except FileExistsError as error:
        raise BadInput(f"--out {str(path)!r} is there already; name a new directory.") from error
    (path / NAMES).write_text("".join(f"{name}\n" for name in data.names), "utf-8")
    for client, split in data.clients.items():
        place = path / client
        place.mkdir()
        for part, index in (("train", split.train), ("test", split.test)):
            np.savez(place / f"{part}.npz", x=data.x[index].numpy(), y=data.y[index].numpy())


def _clients(path: Path) -> list[str]:
    names = sorted(one.name for one in path.iterdir() if one.is_dir() and one.name[0] not in "._")
    if not names:
        raise BadInput(f"{path} has no directories, one for each client.")
    for name in names:
        if name.strip() != name:
            raise BadInput(
                f"{path} has a directory {name!r}: a client's id has no spaces around it."
            )
    return names


def _found_classes(config: DataConfig, places: Sequence[Path]) -> list[str]:
    """The names of the classes: of all directories of images, or the numbers up to the last.

    Of values or several labels, as many numbers as a row has.
    """
    most, labels, names = -1, 0, set()
    for place in places:
        for file in sorted(place.glob("*.npz")):
            y = labels_of(config, _members(file, "y")[0], file)
            if kind_of(config) != CLASSES:
                return list(numbered(y.shape[1]))
            most, labels = max(most, int(y.max(initial=-1))), labels + y.size
        names |= {one.name for one in _folders(place)}
    if names:
        return sorted(names)
    refuse_labels(config, most + 1, labels, f"data.path {config.path!r}")
    return list(numbered(most + 1))


def _folders(place: Path) -> list[Path]:
    return sorted(one for one in place.iterdir() if one.is_dir() and one.name[0] not in "._")


def _client(
    config: DataConfig, place: Path, classes: Sequence[str]
) -> tuple[Examples, Examples | None]:
    """A client's examples, and those it tests on if it says which."""
    files = sorted(place.glob("*.npz"))
    if not files and kind_of(config) != CLASSES:
        raise BadInput(
            f"{place} must have .npz files with data.labels {config.labels!r}: directories of "
            "images are by class."
        )
    if not files:
        return _pictures(place, classes), None
    if _folders(place):
        raise BadInput(f"{place} has .npz files and directories: only one of them can be its data.")
    parts = {file.stem: _arrays(config, file) for file in files}
    for _, y in parts.values():
        refuse_strange(config, y, len(classes), place)
    if parts.keys() == {"train", "test"}:
        return parts["train"], parts["test"]
    if "test" in parts:  # taken together, what it tests on would be trained on
        raise BadInput(f"{place} has test.npz: then it must have train.npz and no other .npz file.")
    x = _stacked([x for x, _ in parts.values()], place)
    return (x, np.concatenate([y for _, y in parts.values()])), None


def _arrays(config: DataConfig, file: Path) -> Examples:
    x, y = _members(file, "x", "y")
    labels = labels_of(config, y, file)
    if len(_checked_inputs(x, file)) != len(labels):
        raise BadInput(f"{file}: x must have as many rows as y, {len(labels)}, not {len(x)}.")
    refuse_gaps(config, x, str(file))
    return x, labels


def _members(file: Path, *names: str) -> list[Array]:
    """Some arrays of a ``.npz`` file; nothing else than arrays is ever read."""
    # Opened here: numpy would leave a damaged file open.
    with reading(file), open(file, "rb") as raw:
        # To numpy, whatever is no archive may be a pickle, and it would tell how to run it.
        if not zipfile.is_zipfile(raw):
            raise ValueError("it is damaged, or no .npz file")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as arrays:
            for name in names:
                if name not in arrays:
                    raise BadInput(f"{file} must have an array {name}; it has {_listed(arrays)}.")
            return [_member(arrays, name) for name in names]


def _member(arrays: Mapping[str, Array], name: str) -> Array:
    try:
        return arrays[name]
    except ValueError as error:
        raise ValueError(
            f"its array {name} is damaged, or holds other things than numbers"
        ) from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _checked_inputs(x: Array, file: Path) -> Array:
    if x.dtype.kind not in "iufb" or x.ndim < 2:
        raise BadInput(f"{file}: x must be numbers, a row for each example.")
    return x


def _pictures(place: Path, classes: Sequence[str]) -> Examples:
    from PIL import Image

    pixels, labels = [], []
    for label, file in _files(place, classes):
        with reading(file), Image.open(file) as image:
            plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
            array = np.asarray(plain, dtype=np.float32) / 255
        pixels.append(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
        labels.append(label)
    if not pixels:
        raise BadInput(f"{place} has neither .npz files nor directories of images by class.")
    return _stacked([image[None] for image in pixels], place), np.asarray(labels, dtype=np.int64)


def _files(place: Path, classes: Sequence[str]) -> Iterator[tuple[int, Path]]:
    for folder_of_class in _folders(place):
        if folder_of_class.name not in classes:
            raise BadInput(f"{folder_of_class} is none of the classes {', '.join(classes)}.")
        for file in sorted(folder_of_class.iterdir()):
            if file.suffix.lower() in _IMAGES:
                yield classes.index(folder_of_class.name), file


def _stacked(parts: Sequence[Array], place: Path) -> Array:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        listed = " and ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
        raise BadInput(f"{place}: all examples must have one shape, not {listed}.")
    kinds = sorted({_kind(part.dtype) for part in parts})
    if len(kinds) > 1:
        raise BadInput(f"{place}: x must be of one kind in all files, not {' and '.join(kinds)}.")
    return np.concatenate(parts)


def _kind(dtype: np.dtype[np.generic]) -> str:
    """What numbers of a type stand for; :func:`_tensor` treats each differently."""
    if dtype == np.uint8:
        return "bytes (pixels)"
    return "whole numbers (words)" if dtype.kind in "iu" else "real numbers"


def joined(
    config: DataConfig,
    seed: int,
    dtype: torch.dtype,
    names: Sequence[str],
    parts: Sequence[tuple[Examples, Examples | None]],
    classes: Sequence[str],
) -> FederatedData:
    """One federation of all clients: some say what they test on, the others draw it."""
    pieces = [part for both in parts for part in both if part is not None]
    x = _tensor(_stacked([x for x, _ in pieces], Path(config.path)), dtype)
    labels = np.concatenate([y for _, y in pieces])
    clients: dict[str, Split] = {}
    start = 0
    for name, (first, second) in zip(names, parts, strict=True):
        own = np.arange(start, start + len(first[1]))
        start += len(own)
        if second is None:
            # Of text every position has a label, and values have none: no class can be held out
            # in equal parts.
            kinds = labels if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)
            clients |= split_clients(kinds, [own], config.test_fraction, seed, [name])
            continue
        tests = np.arange(start, start + len(second[1]))
        start += len(tests)
        if not len(own) or not len(tests):
            raise BadInput(f"{Path(config.path) / name}: train.npz and test.npz must not be empty.")
        clients[name] = Split(torch.from_numpy(own), torch.from_numpy(tests))
    y, kind = torch.from_numpy(labels), kind_of(config)
    if kind != CLASSES:
        y = y.to(dtype)
    return FederatedData(x, y, clients, len(classes), names=tuple(classes), targets=kind)


def _tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """Numbers in the run's type; whole numbers stay whole, for they stand for words."""
    if array.dtype.kind in "iu" and array.dtype != np.uint8:  # see _kind
        return torch.from_numpy(array.astype(np.int64))
    x = torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
    return x.div_(255) if array.dtype == np.uint8 else x  # bytes are pixels
