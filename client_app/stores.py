"""Where a client's personal state lives: in memory, in Flower's Context, or on disk.

Every store keeps two generations of a client's state. A train message of round r
starts from the newest generation that is older than r, so a message delivered
twice, or again after a crash, finds what the first delivery found.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from logging import WARNING
from pathlib import Path
from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from bouquet.core.trees import Tree
from bouquet.flower import wire
from bouquet.flower.private import log
from bouquet.storage.atomic import settle, write_aside
from bouquet.storage.files import Damaged, check_kind, file_name, seal, unseal
from bouquet.storage.privacy import private_folder
from bouquet.storage.state import BadState, Identity, PersonalState

FORMAT = "bouquet-personal-1"


class Store(Protocol):
    """A place for personal state."""

    def load(self, wanted: Identity, before: int) -> PersonalState | None:
        """The newest state left by a round before ``before``; None if there is none."""

    def save(self, *states: PersonalState) -> None:
        """Make these their clients' newest, dropping what their own or a later round left."""


def _newest(generations: Iterable[PersonalState], before: int) -> PersonalState | None:
    newest = 0
    for state in generations:
        if state.round < before:
            return state
        newest = max(newest, state.round)
    if newest > before:
        raise BadState(
            f"Client {state.identity.client} holds personal state of round {newest} and none from "
            f"before round {before}; it was left as it is."
        )
    return None


def _renewed(generations: Sequence[PersonalState], state: PersonalState) -> list[PersonalState]:
    return [state, *[one for one in generations if one.round < state.round][:1]]


class MemoryStore:
    """Personal state in this process."""

    def __init__(self) -> None:
        self._clients: dict[str, list[PersonalState]] = {}

    def load(self, wanted: Identity, before: int) -> PersonalState | None:
        """See :class:`Store`."""
        state = _newest(self._clients.get(wanted.client, []), before)
        if state is not None:
            state.check(wanted, f"The memory of client {wanted.client}")
        return state

    def save(self, *states: PersonalState) -> None:
        """See :class:`Store`."""
        for state in states:
            client = state.identity.client
            self._clients[client] = _renewed(self._clients.get(client, []), state)


class ContextStore:
    """Personal state in the records of Flower's Context, which follows a node around.

    Parameters
    ----------
    records : RecordDict
        The Context's ``state``.
    run : str
        Tells apart the runs that share a Context.
    """

    def __init__(self, records: RecordDict, run: str) -> None:
        self._records, self._run = records, run

    def load(self, wanted: Identity, before: int) -> PersonalState | None:
        """See :class:`Store`."""
        state = _newest(self._generations(wanted.client), before)
        if state is not None:
            state.check(wanted, f"The context of client {wanted.client}")
        return state

    def save(self, *states: PersonalState) -> None:
        """See :class:`Store`."""
        for state in states:
            client = state.identity.client
            for place, one in enumerate(_renewed(self._generations(client), state)):
                self._records[self._key(client, place, "tensors")] = wire.pack(one.tensors)
                self._records[self._key(client, place, "header")] = ConfigRecord(dict(_header(one)))

    def _generations(self, client: str) -> list[PersonalState]:
        found = []
        for place in range(2):
            tensors = self._records.get(self._key(client, place, "tensors"))
            header = self._records.get(self._key(client, place, "header"))
            if isinstance(tensors, ArrayRecord) and isinstance(header, ConfigRecord):
                words = {name: str(value) for name, value in header.items()}
                found.append(_from_header(words, wire.unpack(tensors)))
        return found

    def _key(self, client: str, place: int, part: str) -> str:
        return f"{self._run}/{client}/{place}/{part}"


class DiskStore:
    """Personal state in files that survive the process, the run and a power cut.

    A client has ``<client>.safetensors`` and, one generation older,
    ``<client>.previous.safetensors``. A file appears whole or not at all, and one
    that is found damaged or of something else is refused by name, not replaced.

    Parameters
    ----------
    folder : Path
        Where the files are; made when the first one is.
    recover : bool
        Whether a client whose newest file is damaged goes on from the older one. The damaged one
        is kept under another name.
    """

    def __init__(self, folder: Path, recover: bool = False) -> None:
        self._folder, self._recover = folder, recover
        # The round of each client's newest file, where this object read or wrote it:
        # a file is read and verified once, not again before it is replaced.
        self._rounds: dict[str, int] = {}

    def load(self, wanted: Identity, before: int) -> PersonalState | None:
        """See :class:`Store`."""
        return _newest(self._generations(wanted), before)

    def save(self, *states: PersonalState) -> None:
        """See :class:`Store`."""
        if not states:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        asides: list[Path] = []
        try:
            for state in states:
                asides.append(self._aside(state))
            settle(asides)
        except BaseException:
            for aside in asides:
                aside.unlink()
            raise
        # All new files are whole on disk before an old one gives way; a crash in between leaves
        # the older generation, from which the round starts again.
        for state, aside in zip(states, asides, strict=True):
            newest, previous = self._paths(state.identity.client)
            if self._rounds.get(state.identity.client, state.round) < state.round:
                os.replace(newest, previous)
            os.replace(aside, newest)
            self._rounds[state.identity.client] = state.round
        settle([self._folder])

    def _aside(self, state: PersonalState) -> Path:
        """A state's file, written but not yet in its place."""
        if state.identity.client not in self._rounds:
            next(self._generations(state.identity), None)
        newest, previous = self._paths(state.identity.client)
        if previous.exists():
            check_kind(previous, FORMAT)
        return write_aside(newest, seal(FORMAT, _header(state), state.tensors), safe=False)

    def _generations(self, wanted: Identity) -> Iterator[PersonalState]:
        newest, previous = self._paths(wanted.client)
        if self._recover and newest.exists() and previous.exists():
            _set_aside_if_damaged(newest, previous)
        for path in (newest, previous):
            if path.exists():
                state = read_state(path)
                state.check(wanted, str(path))
                if path == newest:
                    self._rounds[wanted.client] = state.round
                yield state

    def _paths(self, client: str) -> tuple[Path, Path]:
        name = file_name(client)
        return self._folder / f"{name}.safetensors", self._folder / f"{name}.previous.safetensors"


class DeviceStore:
    """Personal state on a device: files in a folder for each run, so no run touches another's.

    Parameters
    ----------
    folder : Path
        The run's folder.
    runs : Path
        Where the folders of all runs are, which sort by when they began.
    keep : bool
        Whether a client without state in this run goes on from what it has of the last run
        of the same scheme.
    recover : bool
        As :class:`DiskStore`'s.
    """

    def __init__(self, folder: Path, runs: Path, keep: bool, recover: bool = False) -> None:
        self._store, self._folder = DiskStore(folder, recover), folder
        self._runs, self._keep = runs, keep

    def load(self, wanted: Identity, before: int) -> PersonalState | None:
        """See :class:`Store`."""
        state = self._store.load(wanted, before)
        return self._earlier(wanted) if state is None and self._keep else state

    def save(self, *states: PersonalState) -> None:
        """See :class:`Store`."""
        if not states:
            return
        private_folder(self._runs.parent)
        self._store.save(*states)

    def _earlier(self, wanted: Identity) -> PersonalState | None:
        """What the last run with the same scheme left, as of before round 1."""
        name = f"{file_name(wanted.client)}.safetensors"
        current = self._runs / self._folder.relative_to(self._runs).parts[0]
        for path in sorted(self._runs.rglob(name), reverse=True):
            if path.is_relative_to(current):
                continue
            state = read_state(path)
            if state.identity.scheme == wanted.scheme:
                state.check(wanted, str(path))
                return replace(state, round=0)
        return None


class Mirrored:
    """A fast store whose state is also written to a durable one.

    This is how a simulation's checkpoint holds the personal state of clients that
    live in memory or in a Context.
    """

    def __init__(self, fast: Store, durable: Store) -> None:
        self._fast, self._durable = fast, durable

    def load(self, wanted: Identity, before: int) -> PersonalState | None:
        """See :class:`Store`."""
        # After a restart the fast one knows less than the durable one, never more.
        with suppress(BadState):
            state = self._fast.load(wanted, before)
            if state is not None:
                return state
        return self._durable.load(wanted, before)

    def save(self, *states: PersonalState) -> None:
        """See :class:`Store`."""
        self._durable.save(*states)
        self._fast.save(*states)


def _set_aside_if_damaged(newest: Path, previous: Path) -> None:
    """Rename a damaged file, so that the older one is the newest; unless that is no better."""
    try:
        unseal(newest, FORMAT)
    except Damaged:
        older = read_state(previous)
        aside = newest.with_name(f"{newest.name}.damaged")
        os.replace(newest, aside)
        log(
            WARNING,
            "%s is damaged and now called %s: client %s goes on from what it had after round %s, "
            "and repeats the rounds since then.",
            newest,
            aside.name,
            older.identity.client,
            older.round,
        )


def read_state(path: Path) -> PersonalState:
    """Read a state file, or refuse it by name."""
    header, tensors = unseal(path, FORMAT)
    try:
        return _from_header(header, tensors)
    except (KeyError, ValueError) as error:
        why = f"its header has no proper {error}"
        raise BadState(f"{path} is damaged ({why}); it was left as it is.") from error


def _header(state: PersonalState) -> dict[str, str]:
    who = state.identity
    return {
        "scheme": who.scheme,
        "version": str(who.version),
        "fingerprint": who.fingerprint,
        "client": who.client,
        "round": str(state.round),
    }


def _from_header(header: dict[str, str], tensors: Tree) -> PersonalState:
    identity = Identity(
        header["scheme"], int(header["version"]), header["fingerprint"], header["client"]
    )
    return PersonalState(identity, int(header["round"]), tensors)
