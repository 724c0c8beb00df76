"""The dashboard beside a run: a process of its own, which the run neither waits for nor feels.

``python -m bouquet.watch.companion FOLDER SOCKET`` serves until its standard input ends, as it does
when the process that started it ends, in whatever way.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HOST = "127.0.0.1"
LAST_NEWS = 1.2  # seconds in which a page that is open learns how the run ended


@contextmanager
def dashboard(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the page about a folder for as long as the block lasts.

    Parameters
    ----------
    folder : Path
        Of a run or of many; it may be made later.
    say : callable
        Told the address to open.
    """
    with socket.create_server((HOST, 0)) as listening:  # the process inherits it
        say(f"http://{HOST}:{listening.getsockname()[1]}/")
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            start_new_session=True,  # Ctrl-C is for the run; the page ends after it
        )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_NEWS + 5.0)
        process.kill()
        process.wait()


def main() -> None:
    """Serve until whoever started this is gone."""
    from bouquet.watch.dashboard import make_app, make_server

    os.nice(10)  # the run comes first
    server = make_server(make_app(Path(sys.argv[1]), awaited=True))
    listening = socket.socket(fileno=int(sys.argv[2]))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    serving.start()
    sys.stdin.buffer.read()
    if server.server_state.connections:
        time.sleep(LAST_NEWS)
    server.should_exit = True
    serving.join()


if __name__ == "__main__":
    main()
