"""Which Bouquet each node runs: a node says so when it connects, and its SuperLink remembers.

Flower keeps no such thing. gRPC lets both sides add words to a request: a node's is taken from its
first one alone, once Flower has let it in.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from bouquet.storage.files import write_atomically

HEADER = "bouquet-version"
FIRST_REQUEST = "/ActivateNode"
FILE = "versions.json"
# What a node says is shown in a terminal.
WORD = re.compile(r"[0-9A-Za-z.+!_-]{1,40}")


def tell_version() -> None:
    """Have this process, a node's, say which Bouquet it runs to the SuperLink it connects to."""
    theirs = grpc.secure_channel

    @wraps(theirs)
    def telling(*words: Any, **more: Any) -> Any:
        return grpc.intercept_channel(theirs(*words, **more), _Tell())

    grpc.secure_channel = telling


def note_versions(folder: Path) -> None:
    """Have this process, a SuperLink's, write down in its folder what nodes say they run."""
    theirs = grpc.server

    @wraps(theirs)
    def noting(*words: Any, interceptors: Sequence[Any] | None = None, **more: Any) -> Any:
        return theirs(*words, interceptors=[*(interceptors or ()), _Note(folder)], **more)

    grpc.server = noting


def versions(folder: Path) -> dict[int, str]:
    """What nodes said last, by Flower's ids of them."""
    try:
        found: dict[str, str] = json.loads((folder / FILE).read_text("utf-8"))
        return {int(node): word for node, word in found.items()}
    except (OSError, ValueError):  # nobody has connected; or damaged: they will say it again
        return {}


class _Tell(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        if details.method.endswith(FIRST_REQUEST):
            said = [*(details.metadata or ()), (HEADER, version("bouquet"))]
            details = details._replace(metadata=said)
        return continuation(details, request)


class _Note(grpc.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None or not details.method.endswith(FIRST_REQUEST):
            return handler
        said = str(dict(details.invocation_metadata).get(HEADER, ""))

        def let_in(request: Any, context: Any) -> Any:
            answer = handler.unary_unary(request, context)  # or an error, of a node that is not
            self._note(int(answer.node_id), said if WORD.fullmatch(said) else "")
            return answer

        return grpc.unary_unary_rpc_method_handler(
            let_in, handler.request_deserializer, handler.response_serializer
        )

    def _note(self, node: int, said: str) -> None:
        with self._lock:
            known = versions(self._folder)
            if known.get(node) == said:
                return
            words = {str(one): word for one, word in (known | {node: said}).items()}
            write_atomically(self._folder / FILE, json.dumps(words).encode())
