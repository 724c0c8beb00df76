"""Seconds a round over gRPC on this machine, by number of nodes, and where they go.

    python benchmarks/deployment.py [NODES]...

Each node hosts one client of ``synthetic``. A round is one message a node and its reply; what a
message costs is by the devices' own record, the rest is Flower's waiting: a SuperNode without
work looks for it every three seconds.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from bouquet.client_app.audit import read_records
from bouquet.deploy.deployment import deploy, hosts_of, prepared

ROUNDS = 8


def measure(nodes: int) -> dict[str, float]:
    """Medians over the rounds after the first."""
    with tempfile.TemporaryDirectory() as place:
        keys = {
            "scheme": "apfl",
            "rounds": ROUNDS,
            "eval-every": 0,
            "data.name": "synthetic",
            "data.clients": nodes,
            "min-clients": nodes,
            "out": f"{place}/run",
        }
        settings, folder = prepared(keys, nodes, None)
        events: list[dict[str, float | dict[str, float]]] = []
        deploy(settings, folder, hosts_of(settings, folder), events.append)
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
        "MB": max(one["peak_memory"] for one in records) / 1e6,
    }


if __name__ == "__main__":
    for count in [int(word) for word in sys.argv[1:]] or [2, 5, 10]:
        found = measure(count)
        words = "  ".join(f"{name} {value:.3g}" for name, value in found.items())
        print(f"{count} nodes: {words}", flush=True)
