"""The dashboard's server on a port of its own, and a visitor who sends what it likes."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn

from bouquet.watch.dashboard import make_app


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Visitor:
    """Asks as it is told to, without tidying paths or headers."""

    port: int

    def get(
        self,
        path: str,
        keys: Mapping[str, str] | None = None,
        method: str = "GET",
        **headers: str,
    ) -> Answer:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            question = f"?{urlencode(keys)}" if keys else ""
            line.putrequest(method, path + question, skip_host="host" in headers)
            for name, value in headers.items():
                line.putheader(name, value)
            line.endheaders()
            answer = line.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read().decode())
        finally:
            line.close()


@contextmanager
def serving(folder: Path, token: str = "", poll: float = 0.1) -> Iterator[Visitor]:
    """Serve a folder, and stop."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        make_app(folder, token, poll),
        log_level="warning",
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Visitor(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
