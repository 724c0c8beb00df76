"""A connection that is dead without anybody having said so is noticed.

A router that forgets a connection, or a machine that loses its power, says nothing: what was sent
stays unanswered, and Flower's requests wait for their answers without an end. gRPC can ask now and
then whether the other side is there, if a channel's options say so.
"""

from collections.abc import Sequence
from functools import wraps
from typing import Any

import grpc  # type: ignore[import-untyped]

# A node looks for work every few seconds, so an answer that is late is rare, and a question is
# asked only where an answer is waited for.
ASK_AFTER = 20.0
WAIT_FOR = 10.0
OPTIONS = (
    ("grpc.keepalive_time_ms", int(1000 * ASK_AFTER)),
    ("grpc.keepalive_timeout_ms", int(1000 * WAIT_FOR)),
    ("grpc.http2.max_pings_without_data", 0),
)


def keep_alive() -> None:
    """Have all channels of this process give up a dead connection, and connect anew."""
    grpc.secure_channel = _asking(grpc.secure_channel)
    grpc.insecure_channel = _asking(grpc.insecure_channel)


def _asking(channel: Any) -> Any:
    @wraps(channel)
    def with_options(
        *words: Any, options: Sequence[tuple[str, Any]] | None = None, **more: Any
    ) -> Any:
        return channel(*words, options=[*(options or ()), *OPTIONS], **more)

    return with_options
