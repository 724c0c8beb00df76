"""Folders and files that are their owner's alone, whatever the umask and whatever was there."""

import os
import stat
from pathlib import Path

from bouquet.core.errors import BadInput


def private_folder(folder: Path) -> Path:
    """A folder that only its owner can look into, made or tightened; another user's is refused."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if os.geteuid() not in (0, found.st_uid):
        raise BadInput(f"{folder} belongs to another user; choose a folder of your own.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def keep_to_owner() -> None:
    """From now on this process makes files of mode 0600 and folders of 0700."""
    os.umask(0o077)
