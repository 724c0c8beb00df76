"""The simulation engines: the same ServerApp and ClientApp, run in two ways.

``inline`` calls the ClientApp in this process, a thread for each core. ``ray`` is
Flower's own simulation engine, a process for each core. Nodes do the same
arithmetic on both, so the same seed and number of nodes give the same weights.
"""

import logging
import os
import secrets
import threading
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from bouquet.flower_private import SUPERLINK_NODE_ID, ErrorCode, Run, TaskIdentity, give_id
from client_app.main import app as client_app
from client_app.main import forget
from server_app.main import Job, make_app
from server_app.roster import exchange
from strategies.core.errors import BadInput, RunFailed
from strategies.settings import Settings


def workers() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_nodes(settings: Settings) -> Settings:
    """Settings whose number of nodes is settled: one per worker unless the user said."""
    return settings.with_run(nodes=settings.run.nodes or workers())


def simulate(jobs: Sequence[Job], engine: str) -> list[dict[str, Any]]:
    """Run simulations one after the other, and stop all that was started for them.

    Parameters
    ----------
    jobs : sequence of Job
        What to run; all with the same number of nodes.
    engine : str
        ``inline`` or ``ray``.

    Returns
    -------
    list of dict
        The runs' summaries.
    """
    for job in jobs:
        if engine == "ray" and job.settings.run.store == "memory":
            raise BadInput(
                "store must be 'context' or 'disk' on the ray engine: its workers share no memory."
            )
    summaries: list[dict[str, Any]] = []
    stop = threading.Event()
    server_app = make_app(jobs, engine, stop, summaries)
    start = {"inline": _run_inline, "ray": _run_ray}[engine]
    try:
        start(server_app, jobs[0].settings.run.nodes)
    finally:
        stop.set()  # whatever ended the engine, the run loop's thread must not wait on
    if len(summaries) != len(jobs):
        raise RunFailed("The run ended without a result.")
    return summaries


class InlineGrid(Grid):
    """A Flower Grid whose nodes are threads of this process.

    Parameters
    ----------
    nodes : int
        How many there are.
    app : ClientApp
        What runs on them.
    """

    def __init__(self, nodes: int, app: ClientApp = client_app) -> None:
        self._app = app
        self._run = Run.create_empty(run_id=secrets.randbits(62))
        self._contexts = {
            place + 1: Context(
                run_id=self._run.run_id,
                node_id=place + 1,
                node_config={"partition-id": place, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for place in range(nodes)
        }
        # OpenMP's number of threads belongs to a thread, so each one sets its own.
        self._pool = ThreadPoolExecutor(workers(), "node", torch.set_num_threads, (1,))
        self._replies: dict[str, Future[Message]] = {}
        TaskIdentity.task_id, TaskIdentity.run_id = 1, self._run.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def close(self) -> None:
        """End the threads and forget what the nodes kept."""
        self._pool.shutdown(cancel_futures=True)
        forget()

    def set_run(self, run: Run) -> None:
        """Set the run messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run messages belong to."""
        return replace(self._run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message, as Flower's older apps do."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes there are."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Give messages to their nodes."""
        ids = []
        for message in messages:
            one = str(uuid.uuid4())
            give_id(message, one)
            self._replies[one] = self._pool.submit(self._answer, message)
            ids.append(one)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that have arrived."""
        ready = [one for one in message_ids if one in self._replies and self._replies[one].done()]
        return [self._replies.pop(one).result() for one in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return exchange(self, list(messages), timeout or 0.0, threading.Event())

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._app(message=message, context=context)
        except Exception as error:  # a node that fails answers with an error, as in Flower
            reason = f"{type(error).__name__}: {error}"
            failed = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
            return Message(failed, reply_to=message)


def _run_inline(server_app: ServerApp, nodes: int) -> None:
    threads = torch.get_num_threads()
    grid = InlineGrid(nodes)
    context = Context(
        run_id=grid.run.run_id, node_id=0, node_config={}, state=RecordDict(), run_config={}
    )
    try:
        torch.set_num_threads(1)
        server_app(grid=grid, context=context)
    finally:
        grid.close()
        torch.set_num_threads(threads)


def _run_ray(server_app: ServerApp, nodes: int) -> None:
    import ray
    from flwr.simulation import run_simulation

    ours = not ray.is_initialized()
    init: dict[str, Any] = {"log_to_driver": False}
    if not os.environ.get("RAY_ADDRESS"):  # else a cluster that has its own number
        init["num_cpus"] = workers()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns about GPUs
    flower = logging.getLogger("flwr")
    flower.addFilter(_not_deprecated)
    try:
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=nodes,
            backend_config={
                "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
                "init_args": init,
            },
        )
    finally:
        flower.removeFilter(_not_deprecated)
        if ours:
            ray.shutdown()


def _not_deprecated(record: logging.LogRecord) -> bool:
    """Flower deprecates ``run_simulation``; ``flwr run`` would leave a SuperLink running."""
    return "DEPRECATED FEATURE" not in record.getMessage()
