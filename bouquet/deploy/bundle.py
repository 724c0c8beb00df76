"""The app as Flower sends it to nodes."""

import hashlib
import io
import zipfile
from pathlib import Path

from bouquet.core.errors import BadInput
from bouquet.flower.private import build_fab_from_files
from bouquet.manifest import APP, BESIDE, PACKAGE, flower_app, manifest

# What runs nothing: texts, Flower's table of contents, and the manifest, which Flower writes anew.
SILENT = (".md", "LICENSE", ".info/CONTENT", "pyproject.toml")
# Unpacked; ours has a tenth of it.
MOST_BYTES = 50 * 10**6


def bundle() -> bytes:
    """The app as Flower sends it: the same bytes from a checkout and from an installed wheel.

    Flower's own collection looks at every file below, a virtual environment's too, for seconds.
    """
    return bytes(build_fab_from_files({"pyproject.toml": manifest(), **_files()})[0])


def fingerprint(content: bytes) -> str:
    """A hash of the files in a bundle that can make it do anything, by name and content."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as app:
            entries = app.infolist()
            if sum(entry.file_size for entry in entries) > MOST_BYTES:
                raise BadInput(f"The server's app has more than {MOST_BYTES} bytes.")
            files = [(entry.filename, app.read(entry)) for entry in entries]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise BadInput(f"The server's app is no bundle: {error}.") from error
    return _fingerprint(files)


def installed_fingerprint() -> str:
    """The same of the app that is installed here."""
    return _fingerprint([(name, path.read_bytes()) for name, path in _files().items()])


def _fingerprint(files: list[tuple[str, bytes]]) -> str:
    lines = [
        f"{hashlib.sha256(content).hexdigest()} {name!r}"
        for name, content in sorted(files)
        if not name.endswith(SILENT)
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _files() -> dict[str, Path]:
    files = {}
    for pattern in flower_app()["fab-include"]:
        room, _, rest = pattern.partition("/")
        # A wheel has the folders that stand beside ours in a checkout inside it.
        inside = PACKAGE if room == PACKAGE.name else PACKAGE / room
        folder = inside if inside.exists() else APP / room
        for path in folder.glob(rest):
            name = path.relative_to(folder).as_posix()
            if room != PACKAGE.name or not name.startswith(BESIDE):
                files[f"{room}/{name}"] = path
    return files
