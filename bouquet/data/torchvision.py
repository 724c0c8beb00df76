"""Torchvision's own downloads, for those who have internet beyond the registries."""

import os
import tempfile
from pathlib import Path

from bouquet.core.errors import BadInput, FetchFailed
from bouquet.data.cache import ASIDE, cache_folder

# Torchvision's class, and the folder it fills.
_SOURCES = {
    "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    "fashion-mnist": ("FashionMNIST", "FashionMNIST"),
    "mnist": ("MNIST", "MNIST"),
    "mnist-writers": ("MNIST", "MNIST"),
}


def folder_of(name: str) -> Path:
    """Where torchvision's files of a data set are, once fetched."""
    return cache_folder() / "torchvision" / _SOURCES[name][1]


def fetch(name: str) -> Path:
    """Let torchvision download a data set's official files, which it checks, into the cache.

    They are only unpacked: our own readers read them, for torchvision's would unpickle
    CIFAR-10.

    Parameters
    ----------
    name : str
        A data set.
    """
    from bouquet.models.vision import torchvision

    if name not in _SOURCES:
        raise BadInput(f"--from torchvision has {', '.join(_SOURCES)}, not {name!r}.")
    kind, filled = _SOURCES[name]
    place = folder_of(name)
    if place.exists():
        return place
    torchvision()
    from torchvision import datasets
    from torchvision.datasets.utils import download_and_extract_archive

    source = getattr(datasets, kind)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=ASIDE, dir=cache_folder()) as aside:
            if kind == "CIFAR10":
                download_and_extract_archive(source.url, aside, md5=source.tgz_md5)
            else:
                source(aside, download=True)
            os.replace(Path(aside) / filled, place)
    except (OSError, RuntimeError) as error:
        why = " ".join(str(error).split())  # one sentence, however many lines it was
        raise FetchFailed(
            f"{name} could not be fetched by torchvision ({why}); is there a network?"
        ) from error
    return place
