"""Which Bouquet each node runs: a node says so when it connects, and its SuperLink remembers."""

import json
import re
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from bouquet.deploy.requests import Around
from bouquet.storage.atomic import write_atomically

HEADER = "bouquet-version"
FIRST_REQUEST = "ActivateNode"
FILE = "versions.json"
# What a node says is shown in a terminal.
WORD = re.compile(r"[0-9A-Za-z.+!_-]{1,40}")


def versions(folder: Path) -> dict[int, str]:
    """What nodes said last, by Flower's ids of them."""
    try:
        found: dict[str, str] = json.loads((folder / FILE).read_text("utf-8"))
        return {int(node): word for node, word in found.items()}
    except (OSError, ValueError):  # nobody has connected; or damaged: they will say it again
        return {}


class TellVersion(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A node's first request says which Bouquet it runs."""

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """See gRPC."""
        if details.method.endswith(f"/{FIRST_REQUEST}"):
            said = [*(details.metadata or ()), (HEADER, version("bouquet"))]
            details = details._replace(metadata=said)
        return continuation(details, request)


class NoteVersion(Around):
    """What nodes say that are let in is written down in the SuperLink's folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__({FIRST_REQUEST: self._let_in})
        self._folder, self._lock = folder, threading.Lock()

    def _let_in(
        self, answer: Callable[[], Any], request: Any, context: Any, said: dict[str, Any]
    ) -> Any:
        found, word = answer(), str(said.get(HEADER, ""))
        self._note(int(found.node_id), word if WORD.fullmatch(word) else "")
        return found

    def _note(self, node: int, word: str) -> None:
        with self._lock:
            known = versions(self._folder)
            if known.get(node) != word:
                words = {str(one): word for one, word in (known | {node: word}).items()}
                write_atomically(self._folder / FILE, json.dumps(words).encode())
