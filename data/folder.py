"""A user's own data: a directory a client, or a table with a column that says whose."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.archives import reading
from data.federated import DataConfig, FederatedData, Split
from data.partitions import split_clients
from data.pool import checked_labels, drawn, owned
from strategies.core.errors import BadInput
from strategies.core.files import file_name

Array = NDArray[np.generic]
Examples = tuple[Array, NDArray[np.int64]]

CLASSES = "classes.txt"
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
        return _table(config, seed, dtype, path)
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
    classes = _named_classes(path)
    if classes is None and only is not None:
        raise BadInput(
            f"{path / CLASSES} is missing: a device that has its own data alone cannot know all "
            "classes without that file, a name in each line."
        )
    places = [path / name for name in names]
    for name, place in zip(names, places, strict=True):
        # A client's name is never a way out of the directory.
        if name in (".", "..") or place.parent != path or not place.is_dir():
            raise BadInput(f"data.path {config.path!r} has no directory of client {name!r}.")
    if classes is None:
        classes = _found_classes(places)
    parts = [_client(place, classes) for place in places]
    return _joined(config, seed, dtype, names, parts, len(classes))


def read_inputs(file: Path) -> Tensor:
    """The examples ``x`` of a ``.npz`` file, as :func:`folder` would take them, without labels."""
    with reading(file), open(file, "rb") as raw, np.load(raw, allow_pickle=False) as arrays:
        if "x" not in arrays or arrays["x"].dtype.kind not in "iufb":
            raise BadInput(f"{file} must have an array x of numbers.")
        return _tensor(arrays["x"], torch.float64)


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
    try:
        path.mkdir(parents=True)
    except FileExistsError as error:
        raise BadInput(f"--out {str(path)!r} is there already; name a new directory.") from error
    names = "".join(f"{number}\n" for number in range(data.classes))
    (path / CLASSES).write_text(names, "utf-8")
    for client, split in data.clients.items():
        place = path / file_name(client)
        place.mkdir()
        for part, index in (("train", split.train), ("test", split.test)):
            np.savez(place / f"{part}.npz", x=data.x[index].numpy(), y=data.y[index].numpy())


def _clients(path: Path) -> list[str]:
    names = sorted(one.name for one in path.iterdir() if one.is_dir() and one.name[0] not in "._")
    if not names:
        raise BadInput(f"{path} has no directories, one for each client.")
    return names


def _named_classes(path: Path) -> list[str] | None:
    try:
        lines = (path / CLASSES).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return None
    return [line.strip() for line in lines if line.strip()]


def _found_classes(places: Sequence[Path]) -> list[str]:
    """The names of the classes: of all directories of images, or the numbers up to the last."""
    most, names = -1, set()
    for place in places:
        for file in sorted(place.glob("*.npz")):
            most = max(most, int(_arrays(file)[1].max(initial=-1)))
        names |= {one.name for one in place.iterdir() if one.is_dir()}
    return sorted(names) if names else [str(number) for number in range(most + 1)]


def _client(place: Path, classes: Sequence[str]) -> tuple[Examples, Examples | None]:
    """A client's examples, and those it tests on if it says which."""
    files = sorted(place.glob("*.npz"))
    if not files:
        return _pictures(place, classes), None
    parts = {file.stem: _arrays(file) for file in files}
    last = max(int(y.max(initial=-1)) for _, y in parts.values())
    if last >= len(classes):
        raise BadInput(f"{place} has the label {last}, but there are {len(classes)} classes.")
    if parts.keys() == {"train", "test"}:
        return parts["train"], parts["test"]
    x = _stacked([x for x, _ in parts.values()], place)
    return (x, np.concatenate([y for _, y in parts.values()])), None


def _arrays(file: Path) -> Examples:
    # Opened here: numpy would leave a damaged file open.
    with reading(file), open(file, "rb") as raw, np.load(raw, allow_pickle=False) as arrays:
        x, y = arrays["x"], arrays["y"]
    if len(x) != len(y) or x.dtype.kind not in "iufb":
        raise BadInput(f"{file}: x must be numbers and have as many rows as y.")
    return x, checked_labels(y, file)


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
    for folder_of_class in sorted(one for one in place.iterdir() if one.is_dir()):
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
    return np.concatenate(parts)


def _joined(
    config: DataConfig,
    seed: int,
    dtype: torch.dtype,
    names: Sequence[str],
    parts: Sequence[tuple[Examples, Examples | None]],
    classes: int,
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
            # Of text every position has a label: no class can be held out in equal parts.
            kinds = labels if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)
            clients |= split_clients(kinds, [own], config.test_fraction, seed, [name])
            continue
        tests = np.arange(start, start + len(second[1]))
        start += len(tests)
        if not len(own) or not len(tests):
            raise BadInput(f"{Path(config.path) / name}: train.npz and test.npz must not be empty.")
        clients[name] = Split(torch.from_numpy(own), torch.from_numpy(tests))
    return FederatedData(x, torch.from_numpy(labels), clients, classes)


def _tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """Numbers in the run's type; whole numbers stay whole, for they stand for words."""
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        return torch.from_numpy(array.astype(np.int64))
    x = torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
    return x.div_(255) if array.dtype == np.uint8 else x  # bytes are pixels


def _table(config: DataConfig, seed: int, dtype: torch.dtype, path: Path) -> FederatedData:
    """A CSV file: a column ``client``, a column ``label``, and inputs in all others."""
    with reading(path), open(path, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else []
    for needed in ("client", "label"):
        if needed not in columns:
            raise BadInput(f"{path} must have a column {needed!r} and rows below it.")
    inputs = [name for name in columns if name not in ("client", "label")]
    names = sorted({row["label"] for row in rows}, key=_in_order)
    names = _named_classes(path.parent) or names
    try:
        x = np.array([[float(row[name]) for name in inputs] for row in rows])
        labels = np.array([names.index(row["label"]) for row in rows])
    except (ValueError, TypeError) as error:
        raise BadInput(f"{path}: an input must be a number, a label one of its own.") from error
    owners = [row["client"] for row in rows]
    y = torch.from_numpy(labels)
    return owned(config, seed, torch.from_numpy(x).to(dtype), y, owners, len(names))


def _in_order(label: str) -> tuple[int, str]:
    """Numbers by size, then words by letters."""
    return (int(label), "") if label.isdecimal() else (2**62, label)
