"""What we add to the requests between a SuperLink and its nodes, by gRPC's own means.

Flower makes its servers and channels itself, and has no option for what goes with them.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import grpc  # type: ignore[import-untyped]


def serve_through(threads: int, *ours: grpc.ServerInterceptor) -> None:
    """Have all gRPC servers of this process pass requests through interceptors of ours, innermost.

    Parameters
    ----------
    threads : int
        How many requests are worked on at a time; more are refused.
    ours : interceptors
        What sees a request after Flower has checked who sent it.
    """
    theirs = grpc.server

    @wraps(theirs)
    def server(pool: Any, *words: Any, interceptors: Sequence[Any] = (), **more: Any) -> Any:
        chain = [*(interceptors or ()), *ours]
        more["maximum_concurrent_rpcs"] = threads
        return theirs(ThreadPoolExecutor(threads), *words, interceptors=chain, **more)

    grpc.server = server


def ask_through(ours: Any) -> None:
    """Have all secure channels of this process send requests through an interceptor of ours."""
    theirs = grpc.secure_channel

    @wraps(theirs)
    def channel(*words: Any, **more: Any) -> Any:
        return grpc.intercept_channel(theirs(*words, **more), ours)

    grpc.secure_channel = channel


class Around(grpc.ServerInterceptor):  # type: ignore[misc]
    """Does something around the answers to some kinds of requests.

    Parameters
    ----------
    around : dict
        For the name of a method, what gives its answer: it is called with Flower's answer, as a
        function that raises for a node that is not let in, the request, gRPC's context and the
        words that came with the request.
    """

    def __init__(self, around: dict[str, Callable[..., Any]]) -> None:
        self._around = around

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """See gRPC."""
        handler = continuation(details)
        around = self._around.get(details.method.rpartition("/")[2])
        if handler is None or around is None:
            return handler
        said = dict(details.invocation_metadata)

        def answered(request: Any, context: Any) -> Any:
            return around(lambda: handler.unary_unary(request, context), request, context, said)

        return grpc.unary_unary_rpc_method_handler(
            answered, handler.request_deserializer, handler.response_serializer
        )
