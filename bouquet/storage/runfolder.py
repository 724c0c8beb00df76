"""A run's folder: what the run was told, what happened, how it ended, where to go on.

Files appear whole or not at all, except ``events.jsonl`` and ``history.jsonl``, which grow a
line a round.
"""

import csv
import io
import json
import math
import os
import re
import secrets
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from bouquet.core.config import flatten
from bouquet.core.errors import BadInput
from bouquet.core.measure import counts
from bouquet.core.trees import Tree
from bouquet.core.untrusted import ids, listed, whole
from bouquet.storage.atomic import put, sweep, write_aside, write_atomically
from bouquet.storage.events import Event, parse_events, perhaps
from bouquet.storage.files import BadFile, seal, unseal

CHECKPOINT = "bouquet-checkpoint-1"
WARM_START = "bouquet-warm-start-1"
# What new_name makes.
NAME = "[0-9]{8}-[0-9]{6}-[0-9a-f]{8}"


@dataclass(frozen=True)
class Checkpoint:
    """The server's state after a round of a stage, and the scheme it belongs to."""

    round: int
    stage: int
    scheme: str
    server: Tree


@dataclass(frozen=True)
class RunFolder:
    """A run's folder.

    Parameters
    ----------
    path : Path
        Where it is.
    """

    path: Path

    @property
    def states(self) -> Path:
        """Personal state of a simulation's clients."""
        return self.path / "state"

    @property
    def predictors(self) -> Path:
        """The clients' final models."""
        return self.path / "predictors"

    @property
    def outcomes(self) -> Path:
        """Which examples a simulation's clients get right."""
        return self.path / "outcomes"

    @property
    def diagnostics(self) -> Path:
        """What a simulation's nodes last told of personal states, a file each."""
        return self.path / "diagnostics"

    @property
    def checkpoint(self) -> Path:
        """The server's state after the last round."""
        return self.path / "server" / "checkpoint.safetensors"

    @property
    def previous_checkpoint(self) -> Path:
        """The one before, until this run knows that the last one is good."""
        return self.checkpoint.with_name("checkpoint.previous.safetensors")

    def check_writable(self) -> None:
        """Say so where the folder could not be made, before any work is done for it."""
        try:
            there = next(
                place for place in (self.path, *self.path.absolute().parents) if place.exists()
            )
        except OSError as error:
            raise BadInput(f"out: {self.path} cannot be written ({error.strerror}).") from error
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise BadInput(f"out: {self.path} cannot be written: {there} is no writable folder.")

    def write_config(self, keys: Mapping[str, object], note: str = "") -> None:
        """Make the folder and write every key, resolved, after a note for who reads it."""
        try:
            (self.path / "server").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"out: {self.path} cannot be written ({error.strerror}).") from error
        tables: dict[str, Any] = {}
        for name, value in keys.items():
            *prefix, last = name.split(".")
            table = tables
            for part in prefix:
                table = table.setdefault(part, {})
            table[last] = value
        # Tables come last in TOML, so that plain keys are not read as part of one.
        ordered = dict(sorted(tables.items(), key=lambda item: isinstance(item[1], dict)))
        head = f"# {note}\n" if note else ""
        write_atomically(self.path / "config.toml", (head + tomli_w.dumps(ordered)).encode())

    def read_keys(self) -> dict[str, object]:
        """The keys the run was started with."""
        return read_toml(self.path / "config.toml")

    def write_waiting(self, words: str) -> None:
        """Leave word of what a run waits for, if it has a folder yet; no words: of nothing."""
        if words and self.path.is_dir():
            write_atomically(self._waiting, words.encode())
        else:
            self._waiting.unlink(missing_ok=True)

    def read_waiting(self) -> str:
        """What a run waits for; empty if it does not."""
        with suppress(FileNotFoundError):
            return self._waiting.read_text("utf-8")
        return ""

    def write_classes(self, names: Sequence[str]) -> None:
        """Remember what the classes are called, one a line, where it is known."""
        if names:
            text = "".join(f"{name}\n" for name in names)
            write_atomically(self.path / "classes.txt", text.encode())

    def write_name(self, name: str) -> None:
        """Remember the name by which devices know the run."""
        write_atomically(self._name, f"{name}\n".encode())

    def read_name(self) -> str:
        """The name by which devices know the run; empty if it never had one.

        Devices that were told another name would start without what they have learned.
        """
        if not self._name.exists():
            return ""
        try:
            name = self._name.read_text("ascii").removesuffix("\n")
        except (OSError, UnicodeDecodeError):
            name = ""
        if not re.fullmatch(NAME, name):
            raise BadFile(f"{self._name} is damaged (it holds no run's name).")
        return name

    @property
    def _waiting(self) -> Path:
        return self.path / "waiting"

    @property
    def _name(self) -> Path:
        return self.path / "server" / "name"

    def write_checkpoint(self, round_: int, scheme: str, server: Tree, stage: int = 1) -> None:
        """Remember the server's state after a round, or at a stage's start."""
        header = {"round": str(round_), "scheme": scheme, "stage": str(stage)}
        aside = write_aside(self.checkpoint, seal(CHECKPOINT, header, server))
        if self.checkpoint.exists():
            os.replace(self.checkpoint, self.previous_checkpoint)
        put(aside, self.checkpoint)

    def restore_checkpoint(self) -> None:
        """Go back to the checkpoint before the last, if there is one."""
        if self.previous_checkpoint.exists():
            os.replace(self.previous_checkpoint, self.checkpoint)

    def read_checkpoint(self) -> Checkpoint:
        """The last finished round and the server's state after it."""
        if not self.checkpoint.exists():  # a crash between two files: nothing is lost
            self.restore_checkpoint()
        header, server = unseal(self.checkpoint, CHECKPOINT)
        try:
            round_, stage = int(header["round"]), int(header.get("stage", "1"))
            return Checkpoint(round_, stage, header["scheme"], server)
        except (KeyError, ValueError) as error:
            raise BadFile(f"{self.checkpoint} is damaged (its header is not whole).") from error

    def write_warm_start(self, stage: int, weights: Tree) -> None:
        """Remember the weights a stage starts from."""
        path = self._warm_start(stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, seal(WARM_START, {"stage": str(stage)}, weights))

    def read_warm_start(self, stage: int) -> Tree:
        """The weights a stage starts from; empty for the first."""
        return unseal(self._warm_start(stage), WARM_START)[1] if stage > 1 else {}

    def _warm_start(self, stage: int) -> Path:
        return self.path / "server" / f"stage{stage}.safetensors"

    def append_event(self, event: Event) -> None:
        """Add a round's line to the log."""
        self._append("events.jsonl", event)

    def read_events(self, last: int) -> list[Event]:
        """The log's rounds up to the last, in order; lines that are damaged are left out."""
        events = parse_events(self._lines("events.jsonl"))
        return [event for event in events if event["round"] <= last]

    def check_events(self, last: int) -> None:
        """Refuse a log that lacks a finished round: the summary is summed up from it."""
        path = self.path / "events.jsonl"
        if not path.exists():
            return
        there = {event["round"] for event in self.read_events(last)}
        lacking = next((round_ for round_ in range(1, last + 1) if round_ not in there), None)
        if lacking is not None:
            raise BadFile(
                f"{path} is damaged (it does not tell of round {lacking}); put back a copy, or "
                "delete it to go on without what it tells of the rounds so far."
            )

    def rewrite_events(self, events: Sequence[Event]) -> None:
        """Replace the log, for a run that goes on from an earlier round."""
        lines = "".join(to_json(event) + "\n" for event in events)
        write_atomically(self.path / "events.jsonl", lines.encode())

    def append_history(self, line: Mapping[str, Any]) -> None:
        """Add what every client did in a round."""
        self._append("history.jsonl", line)

    def cut_history(self, last: int) -> None:
        """Leave out the rounds after the last, and lines that are damaged."""
        kept: dict[int, bytes] = {}
        for line in self._lines("history.jsonl"):
            found = _parsed_columns(line)
            if found is not None and found["round"] <= last:
                kept.setdefault(found["round"], line + b"\n")
        write_atomically(self.path / "history.jsonl", b"".join(kept[one] for one in sorted(kept)))

    def read_diagnostics(self, round_: int) -> dict[str, dict[str, float]]:
        """What a simulation's nodes told of personal states in a round: numbers by client.

        A file that is damaged tells nothing.
        """
        numbers: dict[str, dict[str, float]] = {}
        for path in sorted(self.diagnostics.glob("*.json")):
            columns = _parsed_columns(_content(path)) or {"round": 0}
            if columns.pop("round") == round_:  # else a node that was not asked, or late
                for row, client in enumerate(columns.pop("clients")):
                    numbers[client] = {name: values[row] for name, values in columns.items()}
        return numbers

    def drop_diagnostics(self) -> None:
        """Forget them once the history and the table have them all."""
        shutil.rmtree(self.diagnostics, ignore_errors=True)

    def sweep(self, states: Path) -> None:
        """Remove what a run that was killed left half-written in its folders."""
        inner = (self.path / "server", self.diagnostics, self.predictors, self.outcomes)
        sweep(self.path, *inner, states, *states.glob("stage*/"))

    def _lines(self, name: str) -> list[bytes]:
        """A log's lines; none where there is no log."""
        return _content(self.path / name).splitlines()

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        with open(self.path / name, "ab") as file:
            file.write(f"{to_json(line)}\n".encode())
            file.flush()
            os.fsync(file.fileno())  # before the checkpoint says that the round is done

    def write_clients(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the table of clients; a metric that is not defined for one is an empty cell."""
        told = [{k: v for k, v in row.items() if not _undefined(k, v)} for row in rows]
        columns = dict.fromkeys(column for row in rows for column in row)
        write_atomically(self.path / "clients.csv", to_csv(told, columns))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write how the run ended."""
        write_atomically(self.path / "summary.json", (to_json(summary, indent=2) + "\n").encode())


def _undefined(column: str, value: object) -> bool:
    return isinstance(value, float) and not counts(column, value)


def _content(path: Path) -> bytes:
    """What a file holds; nothing where it is not there or cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parsed_columns(line: bytes) -> dict[str, Any] | None:
    """Numbers of some clients in a round, or nothing where they were cut short or damaged."""
    try:
        found = json.loads(line.decode())
        if not isinstance(found, dict):
            return None
        _check_columns(found)
    except (ValueError, KeyError, RecursionError):
        return None
    return found


def _check_columns(found: Mapping[str, Any]) -> None:
    """Refuse what is not a number, or null, for each of some clients in a round."""
    whole(found["round"], "round", low=1)
    count = len(ids(found["clients"], "clients"))
    for name in found.keys() - {"version", "round", "clients"}:
        listed(found[name], name, perhaps, count)


def unused(what: str) -> Path:
    """A folder under ``runs/`` that is not there yet, by the time and what it is for."""
    base = Path("runs") / f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{what}"
    places = (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in range(1, 1000))
    return next(place for place in places if not place.exists())


def new_name() -> str:
    """A run's name on devices: like no other, and later runs sort after earlier ones."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = ()) -> bytes:
    """A table with some columns; without, with every one that some row has."""
    columns = list(columns) or list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def to_json(value: object, indent: int | None = None) -> str:
    """JSON as everyone reads it: a number that is not finite is null."""

    def known(part: object) -> object:
        if isinstance(part, float) and not math.isfinite(part):
            return None
        if isinstance(part, Mapping):
            return {name: known(one) for name, one in part.items()}
        return [known(one) for one in part] if isinstance(part, (list, tuple)) else part

    separators = (",", ":") if indent is None else None  # a log is for programs, and large
    return json.dumps(known(value), indent=indent, allow_nan=False, separators=separators)


def read_toml(path: Path) -> dict[str, object]:
    """The flat keys of a TOML file, or a sentence that says what is wrong with it."""
    try:
        return flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}.") from error
