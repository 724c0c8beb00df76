"""Workers that train groups of runs side by side: processes on the cores, or on a Ray cluster."""

import functools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast

from bouquet.core.errors import BadInput, RunFailed
from bouquet.flower.inline import workers
from bouquet.jobs import Plan
from bouquet.storage.marker import NotShared, check_shared, marked
from bouquet.sweeping import worker
from bouquet.sweeping.worker import News

# Told each news with its group's place.
Hear = Callable[[int, News], None]


class Crew(Protocol):
    """Who trains groups of runs."""

    def run(self, groups: Sequence[Sequence[Plan]], hear: Hear) -> None:
        """Train all groups; what is refused, or a worker that dies, ends all."""


class Worker(Protocol):
    """Trains groups of runs, one after the other."""

    def train(self, group: Sequence[Plan]) -> Iterator[News]:
        """Train a group, and tell of all that happens."""

    def close(self) -> None:
        """End, whatever it is at."""


class Alone:
    """Nobody but this process, which does one group after the other."""

    def run(self, groups: Sequence[Sequence[Plan]], hear: Hear) -> None:
        """See :class:`Crew`."""
        for place, group in enumerate(groups):
            worker.train(group, functools.partial(_pass_on, hear, place))


class SideBySide:
    """Workers, each with a group at a time.

    Parameters
    ----------
    crew : sequence of Worker
        At least one; they start when they are first needed.
    """

    def __init__(self, crew: Sequence[Worker]) -> None:
        self._crew = crew

    def run(self, groups: Sequence[Sequence[Plan]], hear: Hear) -> None:
        """See :class:`Crew`."""
        waiting = queue.SimpleQueue[tuple[int, Sequence[Plan]]]()
        for pair in enumerate(groups):
            waiting.put(pair)
        heard = queue.SimpleQueue[tuple[int, News] | BaseException | None]()
        busy = [
            threading.Thread(target=_work, args=(one, waiting, heard), daemon=True)
            for one in self._crew[: len(groups)]
        ]
        for thread in busy:
            thread.start()
        left = len(busy)
        while left:
            found = heard.get()
            if found is None:
                left -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                _pass_on(hear, *found)


def _pass_on(hear: Hear, place: int, news: News) -> None:
    if news.kind == "refused":
        raise BadInput(news.words)
    hear(place, news)


def _work(one: Worker, waiting: Any, heard: Any) -> None:
    try:
        while True:
            place, group = waiting.get_nowait()
            for news in one.train(group):
                heard.put((place, news))
    except queue.Empty:
        heard.put(None)
    except BaseException as error:
        heard.put(error)


@contextmanager
def crew(engine: str, count: int, here: bool, folder: Path, keep: int) -> Iterator[Crew]:
    """A crew for as long as the block lasts.

    Parameters
    ----------
    engine : str
        ``inline`` for processes on this machine, ``ray`` for Ray's.
    count : int
        How many; 0 for one a core. One on this machine is this process itself.
    here : bool
        Whether all is done by this process, which alone has what is needed.
    folder : Path
        For what the processes log.
    keep : int
        A file that stays open as long as one of them lives.
    """
    with ExitStack() as stack:
        if here or (count == 1 and engine == "inline"):
            yield Alone()
            return
        members: list[Worker]
        if engine == "ray":
            markers = stack.enter_context(marked(folder))
            members = list(stack.enter_context(_ray(count, markers)))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            several = range(count or workers())
            members = [Process(folder / f"worker{place}.log", keep) for place in several]
        for one in members:
            stack.callback(one.close)
        yield SideBySide(members)


class Process:
    """A process of its own.

    Parameters
    ----------
    log : Path
        Where it writes what goes wrong.
    keep : int
        A file it keeps open.
    """

    def __init__(self, log: Path, keep: int) -> None:
        self._log, self._keep = log, keep
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def train(self, group: Sequence[Plan]) -> Iterator[News]:
        """See :class:`Worker`."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(worker.to_line(group))
            process.stdin.flush()
        for line in process.stdout:
            news = News(**json.loads(line))
            if news.kind == "free":
                return
            yield news
        if not self._closed:
            raise RunFailed(f"A worker ended (exit code {process.wait()}); see {self._log}.")

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            with open(self._log, "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", worker.__name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    pass_fds=[self._keep],
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": "1",
                        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    },
                )
        return self._process

    def close(self) -> None:
        """See :class:`Worker`."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()


@contextmanager
def _ray(count: int, markers: Sequence[str]) -> Iterator[Sequence[Worker]]:
    """Workers of a Ray cluster, or of one that is started on this machine."""
    import ray

    ours = not ray.is_initialized()
    if ours:
        init: dict[str, Any] = {"log_to_driver": False}
        if not os.environ.get("RAY_ADDRESS"):
            init |= {"address": "local", "num_cpus": workers()}
        ray.init(**init)
    try:
        several = count or int(cast(Any, ray.cluster_resources()).get("CPU", 1))
        yield [OnRay(markers) for _ in range(several)]
    finally:
        if ours:
            ray.shutdown()


class OnRay:
    """A process of a Ray cluster, whose machines must share the sweep's folder.

    Parameters
    ----------
    markers : sequence of str
        Files by which it tells that they do.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = markers
        self._actor: Any = None

    def train(self, group: Sequence[Plan]) -> Iterator[News]:
        """See :class:`Worker`."""
        import ray

        if self._actor is None:
            self._actor = ray.remote(num_cpus=1)(_Actor).remote()
        try:
            stream = self._actor.train.options(num_returns="streaming")
            for one in stream.remote(list(group), self._markers):
                yield cast(News, ray.get(one))
        except ray.exceptions.RayError as error:
            raise RunFailed(f"A worker of Ray's failed: {error}") from error

    def close(self) -> None:
        """See :class:`Worker`."""
        import ray

        if self._actor is not None:
            ray.kill(self._actor)


class _Actor:
    """What runs in a process of Ray's."""

    def train(self, group: Sequence[Plan], markers: Sequence[str]) -> Iterator[News]:
        try:
            check_shared(markers)
        except NotShared as error:
            yield News("refused", words=str(error))
            return
        found: queue.SimpleQueue[News | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                worker.train(group, found.put)
            finally:
                found.put(None)

        threading.Thread(target=work, daemon=True).start()
        while (news := found.get()) is not None:
            yield news
