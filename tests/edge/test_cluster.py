"""A Ray cluster of two machines, which are network namespaces that share all folders but one."""

import shutil
import tempfile
import time
from collections.abc import Callable

from tests.conftest import Run
from tests.edge.test_docs import ADDRESS, Machine, machines, pytestmark

__all__ = ["machines", "pytestmark"]

HEAD = f"{ADDRESS.format(1)}:6379"
START = "ray start --num-cpus 1 --disable-usage-stats --block"


def wait_for(machine: Machine, cpus: str) -> None:
    deadline = time.monotonic() + 150
    while cpus not in machine.run(f"bash -c 'ray status --address {HEAD} 2>&1 || true'"):
        assert time.monotonic() < deadline, machine.run("cat log")
        time.sleep(2.0)  # each look starts Python, and Ray wants the machine


def test_a_cluster_ends_with_the_bits_of_one_machine(
    machines: dict[str, Machine],
    start: Callable[..., Run],
) -> None:
    """A worker of one processor on each, so that each of them has a node."""
    server, other = machines["server"], machines["north"]
    # Not in Ray's usual folder, where whoever else uses Ray would find it; and sockets want short
    # names.
    folder = tempfile.mkdtemp(prefix="ray")
    head = f"--head --include-dashboard false --port 6379 --temp-dir {folder}"
    server.start(f"{START} {head} --node-ip-address {ADDRESS.format(1)}")
    wait_for(server, "1.0 CPU")
    # Of one folder the other machine has a disk of its own.
    apart = server.folder / "apart"
    apart.mkdir()
    joins = f"{START} --address {HEAD} --node-ip-address {ADDRESS.format(2)}"
    other.start(f"unshare -m bash -c 'mount -t tmpfs none {apart} && exec {joins}'")
    wait_for(server, "2.0 CPU")
    keys = "-c nodes=2 -c rounds=3 -c local-steps=2 -c data.clients=4 -c clients-per-round=3"
    server.run(f"env RAY_ADDRESS={HEAD} bouquet simulate --engine ray {keys} --out run")
    cluster = Run(server.folder / "run")
    data = {"clients": 4}
    alone = start(nodes=2, rounds=3, local_steps=2, clients_per_round=3, data=data)
    assert cluster.sha == alone.sha
    assert cluster.clients == alone.clients
    assert all(set(event["nodes"]) == {"0", "1"} for event in cluster.events)
    simulate = f"env RAY_ADDRESS={HEAD} bouquet simulate --engine ray {keys}"
    for place in ("--out apart/run", "--out other -c state-dir=apart/state"):
        said = server.run(f"bash -c '{simulate} {place} 2>&1; echo exit $?'")
        assert "is another folder than the run's: all machines of a cluster must share it" in said
        assert said.endswith("exit 2\n")
    assert not [*apart.iterdir(), *server.folder.glob("other")]
    shutil.rmtree(folder, ignore_errors=True)
