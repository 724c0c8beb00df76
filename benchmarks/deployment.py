"""Seconds a round over gRPC on this machine, by number of nodes, and where they go.

    python benchmarks/deployment.py [NODES]... [--clients N]

Each node hosts one client of ``synthetic``, or with ``--clients N`` so many. A round is one message
a node and its reply; what a message costs is by the devices' own record. A node's memory is what
its processes hold in their share (PSS) at most, by looks ten times a second.
"""

import argparse
import os
import statistics
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from bouquet.client_app.audit import read_records
from bouquet.deploy.deployment import deploy, hosts_of, prepared
from bouquet.deploy.processes import processes_of

ROUNDS = 8
LOOK = 0.1


def memory_of(home: Path) -> float:
    """MB that the processes of a node hold."""
    found = 0
    for process in processes_of(home):
        with suppress(OSError):  # it has ended
            held = (process / "smaps_rollup").read_text().partition("Pss:")[2]
            found += int(held.split()[0])
    return found * 1024 / 1e6


class Watch(threading.Thread):
    """Looks at the first node's memory until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped, self.most = threading.Event(), 0.0

    def run(self) -> None:
        """Look."""
        homes: list[Path] = []
        while not self.stopped.wait(LOOK):
            found = Path(tempfile.gettempdir()).glob("bouquet-*/node0")
            homes = homes or [one for one in found if one.stat().st_uid == os.getuid()]
            if homes:
                self.most = max(self.most, memory_of(homes[0]))


def measure(nodes: int, clients: int) -> dict[str, float]:
    """Medians over the rounds after the first."""
    with tempfile.TemporaryDirectory() as place:
        keys = {
            "scheme": "apfl",
            "rounds": ROUNDS,
            "eval-every": 0,
            "data.name": "synthetic",
            "data.clients": nodes * clients,
            "min-clients": nodes * clients,
            "out": f"{place}/run",
        }
        settings, folder = prepared(keys, nodes, None)
        events: list[dict[str, float | dict[str, float]]] = []
        watch = Watch()
        watch.start()
        deploy(settings, folder, hosts_of(settings, folder), events.append)
        watch.stopped.set()
        later = [event["timing"] for event in events[1:]]
        records = [
            one
            for device in Path(place).glob("run/devices/*/sent")
            for _, one in read_records(device)
            if one["kind"] == "train" and one["round"] > 1
        ]
    cpu = statistics.median(one["cpu_seconds"] for one in records)
    return {
        "round": statistics.median(timing["round"] for timing in later),
        "training": statistics.median(timing["training"] for timing in later),
        "aggregation": statistics.median(timing["aggregation"] for timing in later),
        "CPU s a message": cpu,
        "MB a message": max(one["peak_memory"] for one in records) / 1e6,
        "MB a node": watch.most,
    }


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Seconds a round over gRPC")
    words.add_argument("nodes", nargs="*", type=int)
    words.add_argument("--clients", type=int, default=1)
    asked = words.parse_args()
    for count in asked.nodes or [2, 5, 10]:
        found = measure(count, asked.clients)
        told = "  ".join(f"{name} {value:.3g}" for name, value in found.items())
        print(f"{count} nodes: {told}", flush=True)
