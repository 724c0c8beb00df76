"""The simulation engines: the same ServerApp and ClientApp, run in two ways.

``inline`` calls the ClientApp in this process, a thread for each core. ``ray`` is
Flower's own simulation engine, a process for each core. Nodes do the same
arithmetic on both, so the same seed and number of nodes give the same weights.
"""

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from bouquet.client_app.main import app as client_app
from bouquet.client_app.main import forget
from bouquet.core.errors import BadInput, RunFailed
from bouquet.core.placement import find, gpus
from bouquet.flower.exchange import ARRIVED
from bouquet.flower.inline import InlineGrid, workers
from bouquet.flower.private import end_busy_workers, hand_over_at_once
from bouquet.server_app.main import Job, make_app
from bouquet.settings import Settings

# A message larger than this goes through Ray's shared memory.
DIRECT_BYTES = 8 * 2**20


def with_nodes(settings: Settings) -> Settings:
    """Settings whose number of nodes is settled: one per worker unless the user said.

    A GPU is a worker: nodes that shared one would only wait for each other.
    """
    run = settings.run
    return settings.with_run(nodes=run.nodes or gpus(run.device) or workers())


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
        device = job.settings.run.device
        if engine == "ray" and ":" in device:
            raise BadInput(
                f"device must be 'cuda' on the ray engine, not {device!r}: it gives every worker a "
                "GPU of its own."
            )
        find(device)
    summaries: list[dict[str, Any]] = []
    stop = threading.Event()
    server_app = make_app(jobs, engine, stop, summaries)
    run = jobs[0].settings.run
    try:
        if engine == "inline":
            _run_inline(server_app, run.nodes)
        else:
            _run_ray(server_app, run.nodes, find(run.device))
    finally:
        stop.set()  # whatever ended the engine, the run loop's thread must not wait on
    if len(summaries) != len(jobs):
        raise RunFailed("The run ended without a result.")
    return summaries


class LocalNodes(InlineGrid):
    """Nodes that are threads of this process; what they keep is forgotten when they are closed.

    Parameters
    ----------
    nodes : int
        How many there are.
    app : ClientApp
        What runs on them.
    """

    def __init__(self, nodes: int, app: ClientApp = client_app) -> None:
        super().__init__(nodes, app, forget)


def _run_inline(server_app: ServerApp, nodes: int) -> None:
    threads = torch.get_num_threads()
    grid = LocalNodes(nodes)
    context = Context(
        run_id=grid.run.run_id, node_id=0, node_config={}, state=RecordDict(), run_config={}
    )
    try:
        torch.set_num_threads(1)
        server_app(grid=grid, context=context)
    finally:
        grid.close()
        torch.set_num_threads(threads)


def _run_ray(server_app: ServerApp, nodes: int, device: torch.device) -> None:
    import ray
    from flwr.simulation import run_simulation

    ours = not ray.is_initialized()
    init: dict[str, Any] = {"log_to_driver": True}  # or nobody sees what a worker warns of
    if not os.environ.get("RAY_ADDRESS"):  # else a cluster that has its own
        init["address"] = "local"  # or Ray would look for one that was started on this machine
        init["num_cpus"] = workers()
        # Weights in the message itself instead of in Ray's shared memory: 8 ms less a round.
        init["_system_config"] = {"max_direct_call_object_size": DIRECT_BYTES}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns about GPUs
    flower = logging.getLogger("flwr")
    flower.addFilter(_not_deprecated)
    hand_over_at_once(ARRIVED)
    end_busy_workers()
    try:
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=nodes,
            backend_config={
                # Ray shows a worker the GPUs it gives it, and no other.
                "client_resources": {"num_cpus": 1.0, "num_gpus": float(device.type == "cuda")},
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
