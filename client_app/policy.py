"""What its owner lets a device do, whatever a server asks: the file of ``bouquet node --policy``.

Without a file the defaults hold. A file is read anew for every message, so a change counts from the
next one on; one that cannot be read lets nothing happen. See docs/policy.md.
"""

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path

from bouquet.core.config import key, keys_of, read
from bouquet.core.errors import BadInput
from bouquet.storage.atomic import write_atomically

# How long the owner's command may take, in seconds; one that hangs must not hang the device.
PATIENCE = 30
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class Policy:
    """An owner's rules. A list may be an array, or one text with commas."""

    schemes: str = key("", "schemes that may run, by name or import path; empty = all of ours")
    models: str = key("", "models that may be trained, likewise; empty = all of ours")
    parts: str = key("", "import paths of data, losses, metrics, augmentations that may be named")
    bundles: str = key("", "fingerprints of other versions of the app that servers may run")
    label_counts: bool = key(False, "whether numbers of examples of each label may leave")
    example_counts: bool = key(True, "whether numbers of examples may leave; else each says 1")
    metrics: bool = key(True, "whether the loss and accuracy of its models may leave")
    parameters: int = key(10**8, "most parameters of a model; 0 = any number", low=0)
    memory: int = key(0, "most megabytes of a message's process; 0 = half of the machine's", low=0)
    cpu_seconds: int = key(3600, "most CPU seconds of a message; 0 = any number", low=0)
    rounds_a_day: int = key(0, "most rounds of training a day; 0 = any number", low=0)
    hours: str = key("", "when it may work, such as 22:00-06:00; empty = at any time")
    command: str = key("", "a command that says 'not now' by an exit status other than 0")

    def __post_init__(self) -> None:
        for span in listed(self.hours):
            if not _HOURS.fullmatch(span):
                raise BadInput(f"hours must be like 22:00-06:00, not {span!r}.")

    @property
    def named(self) -> frozenset[str]:
        """All that it names as something that may run."""
        return frozenset([*listed(self.schemes), *listed(self.models), *listed(self.parts)])

    @property
    def most_memory(self) -> int:
        """Bytes that a message's process may hold."""
        if self.memory:
            return self.memory * 10**6
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

    def refuse_now(self, now: datetime) -> None:
        """Refuse work outside the owner's hours, and when the owner's command says so."""
        spans = listed(self.hours)
        if spans and not any(_within(now.time(), span) for span in spans):
            raise BadInput(f"Not now: its owner lets the device work at {self.hours}.")
        if self.command and not _agrees(self.command):
            raise BadInput("Not now: the command of the device's owner says so.")

    def count_round(self, folder: Path, named: str, now: datetime) -> None:
        """Refuse one round more than the owner allows a day; one delivered twice counts once.

        Parameters
        ----------
        folder : Path
            Of the device, which remembers the day's rounds there.
        named : str
            The run and the round.
        now : datetime
            The device's time.
        """
        if not self.rounds_a_day:
            return
        path, today = folder / "rounds.json", now.date().isoformat()
        done = _rounds_of(path, today)
        if named in done:
            return
        if len(done) >= self.rounds_a_day:
            raise BadInput(
                f"Not now: its owner lets the device train {self.rounds_a_day} rounds a day."
            )
        write_atomically(path, json.dumps({"day": today, "rounds": [*done, named]}).encode())


def read_policy(path: str) -> Policy:
    """The rules in a file; the defaults where there is none to read."""
    if not path:
        return Policy()
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"The policy {path} cannot be read: {error}.") from error
    known = [one.name for one in keys_of(Policy)]
    for name in values:
        if name not in known:
            raise BadInput(
                f"The policy {path} must not have {name}; it may have {', '.join(known)}."
            )
    try:
        return read(Policy, {name: _text(value) for name, value in values.items()})
    except BadInput as error:
        raise BadInput(f"The policy {path}: {error}") from error


def listed(text: str) -> list[str]:
    """The words of a list."""
    return [word for word in (one.strip() for one in text.split(",")) if word]


def _text(value: object) -> object:
    if not isinstance(value, list):
        return value
    if not all(isinstance(one, str) for one in value):
        raise BadInput(f"a list must be of texts, not {value!r}.")
    return ",".join(value)


def _within(now: time, span: str) -> bool:
    """Whether a time is in a span, which may go past midnight."""
    found = _HOURS.fullmatch(span)
    assert found is not None  # or the policy had been refused
    first, last = time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))
    now = now.replace(tzinfo=None)
    return first <= now < last if first <= last else now >= first or now < last


def _agrees(command: str) -> bool:
    """Whether the owner's command ends well, and in time."""
    try:
        done = subprocess.run(
            shlex.split(command), timeout=PATIENCE, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _rounds_of(path: Path, day: str) -> list[str]:
    """The rounds that a file remembers of a day; of a damaged one, none were forgotten."""
    try:
        kept: Mapping[str, object] = json.loads(path.read_bytes())
        rounds = kept["rounds"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is damaged; its owner may remove it.") from error
    return (
        [str(one) for one in rounds] if kept.get("day") == day and isinstance(rounds, list) else []
    )
