"""Run folders, read as they grow."""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from bouquet.storage.events import Event, parse_event
from bouquet.storage.history import Line, parse_line
from bouquet.storage.runs import Run, find, not_followed, read


@dataclass
class Tail:
    """A file of lines of which only what is new is read.

    Parameters
    ----------
    path : Path
        Of the file.
    """

    path: Path
    _offset: int = 0
    _inode: int = 0

    def read(self) -> tuple[bool, list[str]]:
        """Whether the file was replaced and is read anew, and the whole lines that are new."""
        anew = False
        try:
            with open(self.path, "rb", opener=not_followed) as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self._inode or now.st_size < self._offset:
                    anew, self._offset, self._inode = True, 0, now.st_ino
                file.seek(self._offset)
                added = file.read()
        except OSError:
            return False, []
        whole = added.rfind(b"\n") + 1
        self._offset += whole
        return anew, added[:whole].decode("utf-8", errors="replace").splitlines()


@dataclass
class Log:
    """A run's rounds, read as they come.

    Parameters
    ----------
    path : Path
        Of ``events.jsonl``.
    """

    path: Path
    events: dict[int, Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tail = Tail(self.path)

    def update(self) -> None:
        """Take in what was added; a file that was replaced is read anew."""
        anew, lines = self._tail.read()
        if anew:
            self.events = {}
        for event in filter(None, map(parse_event, lines)):
            self.events[event["round"]] = event


@dataclass
class History:
    """A run's ``history.jsonl``, read as it comes.

    Parameters
    ----------
    path : Path
        Of the file.
    """

    path: Path
    lines: dict[int, Line] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tail = Tail(self.path)
        self._lock = threading.Lock()

    def update(self) -> list[Line]:
        """Take in what was added; returns all lines in order of their rounds."""
        with self._lock:
            anew, added = self._tail.read()
            if anew:
                self.lines = {}
            for line in filter(None, map(parse_line, added)):
                self.lines[line.round] = line
            return [self.lines[round_] for round_ in sorted(self.lines)]


class Watch:
    """The runs in a folder, read when asked and only where something changed.

    A run is asked for by the name it was found under. No path is ever made of what a
    visitor sends, so none can lead out of the folder.

    Parameters
    ----------
    folder : Path
        Of a run, or of many.
    awaited : bool
        Whether the folder may be made later.
    """

    def __init__(self, folder: Path, awaited: bool = False) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._logs: dict[Path, Log] = {}
        self._runs: dict[Path, tuple[object, Run]] = {}
        self._histories: dict[Path, History] = {}
        if not awaited:
            find(folder)  # refuses what is no folder

    def stamps(self) -> dict[str, object]:
        """Something for every run that is another when the run has changed."""
        return {name: stamp for name, (stamp, _) in self._look().items()}

    def runs(self) -> dict[str, Run]:
        """The runs as they are now, by name."""
        return {name: run for name, (_, run) in self._look().items()}

    def history(self, run: Run) -> list[Line]:
        """Every client's numbers in a run; large, so read only where somebody asks."""
        with self._lock:
            history = self._histories.setdefault(run.path, History(run.path / "history.jsonl"))
        return history.update()

    def _look(self) -> dict[str, tuple[object, Run]]:
        with self._lock:
            runs = {}
            for path in find(self._folder) if self._folder.is_dir() else []:
                stamp = _stamp(path)
                if path not in self._runs or self._runs[path][0] != stamp:
                    self._runs[path] = (stamp, self._read(path))
                runs[self._name(path)] = self._runs[path]
            return runs

    def _name(self, path: Path) -> str:
        return path.name if path == self._folder else str(path.relative_to(self._folder))

    def _read(self, path: Path) -> Run:
        log = self._logs.setdefault(path, Log(path / "events.jsonl"))
        log.update()
        events = [log.events[round_] for round_ in sorted(log.events)]
        return read(path, self._name(path), events)


def _stamp(path: Path) -> tuple[tuple[int, int], ...]:
    stamps = []
    for name in ("config.toml", "events.jsonl", "clients.csv", "summary.json"):
        try:
            stat = (path / name).stat()
            stamps.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            stamps.append((0, 0))
    return tuple(stamps)
