"""What a SuperLink and our server app cost by number of nodes, over gRPC on this machine.

    python benchmarks/fleet.py [--in-memory] [--rounds N] [NODES]...

Nodes are light: threads of one process that speak the Fleet API as SuperNodes do, with TLS and
keys, and answer what one real client answered, a little changed: so the machine carries many of
them; they come twenty a second. CPU seconds are told, not seconds: they hold while others use the
machine, too.
"""

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Context, Message, RecordDict

from bouquet.client_app.main import app
from bouquet.deploy.certificates import make_node_key
from bouquet.deploy.deployment import pass_on_rounds
from bouquet.deploy.processes import processes_of
from bouquet.deploy.superlink import Deployment
from bouquet.flower import wire
from bouquet.flower.private import (
    TaskIdentity,
    get_all_nested_objects,
    get_object_tree,
    give_id,
    grpc_request_response,
    make_simple_grpc_retry_invoker,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from bouquet.settings import Settings, parse
from bouquet.storage.runfolder import RunFolder

# Seconds between two looks for work, as in Flower's SuperNode.
LOOK = 3.0
# Nodes that come in a second.
COME = 20


class Answers:
    """One real client's answers, for everybody."""

    def __init__(self, folder: str, client: str) -> None:
        self._lock, self._known = threading.Lock(), dict[tuple[str, str], RecordDict]()
        self._config = {"client-id": client, "state-dir": folder}

    def to(self, message: Message, number: int) -> Message:
        """The answer of a client that is not quite the first."""
        data = message.metadata
        with self._lock:
            kind = (data.message_type, data.group_id)
            if kind not in self._known:
                self._known[kind] = self._work(message)
            found = self._known[kind]
            client = f"{number:03d}"
            note = dict(found.config_records[wire.NOTE]) | {"clients": [client]}
            tree = wire.unpack(found.array_records[wire.ARRAYS])
            moved = {name: value + 1e-6 * number for name, value in tree.items()}
            content = wire.content(moved, found.metric_records[wire.METRICS], ConfigRecord(note))
            # Whom a message comes from is the process's, and there are many nodes in this one.
            TaskIdentity.task_id, TaskIdentity.run_id = 1, data.run_id
            TaskIdentity.node_id = data.dst_node_id
            return Message(content, reply_to=message)

    def _work(self, message: Message) -> RecordDict:
        note = message.content.config_records[wire.NOTE]
        if "clients" in note:
            note["clients"] = [self._config["client-id"]]
        data = message.metadata
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, data.run_id, 1
        return app(message, Context(data.run_id, 1, dict(self._config), RecordDict(), {})).content


def live(number: int, address: str, ca: bytes, key: Path, answers: Answers) -> None:
    """Be a node until the process ends."""
    secret = load_ssh_private_key(key.read_bytes(), None)
    keys = (secret, secret.public_key())
    retry = make_simple_grpc_retry_invoker()
    time.sleep(number / COME)
    with grpc_request_response(
        address, False, retry, root_certificates=ca, authentication_keys=keys
    ) as connection:
        _, receive, send, _, _, pull_object, push_object, confirm = connection
        while True:
            found = receive()
            if found is None:
                time.sleep(LOOK)
                continue
            head, tree = found
            run = head.metadata.run_id
            message = pull_and_inflate_object_from_tree(
                tree,
                lambda one, run=run: pull_object(run, one),
                lambda one, run=run: confirm(run, one),
                return_type=Message,
            )
            message.metadata.__dict__.update(head.metadata.__dict__)
            reply = answers.to(message, number)
            give_id(reply, reply.object_id)
            wanted, session = send(reply, get_object_tree(reply), 0.1)
            push_objects(
                get_all_nested_objects(reply),
                lambda one, content, run=run, session=session: push_object(
                    run, session, one, content
                ),
                object_ids_to_push=wanted,
            )


def crowd(address: str, ca: bytes, keys: Sequence[Path], folder: str) -> None:
    """A process with many nodes."""
    os.environ["GRPC_VERBOSITY"] = "none"
    answers = Answers(folder, "000")
    threads = [
        threading.Thread(target=live, args=(number, address, ca, key, answers), daemon=True)
        for number, key in enumerate(keys)
    ]
    for thread in threads:
        thread.start()
    threads[0].join()


def cpu_seconds(process: int) -> float:
    """What a process has used, without those it started."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def server_app(home: Path) -> int:
    """The process of the server app."""
    for entry in processes_of(home):
        with suppress(OSError):
            if "flwr-serverapp" in (entry / "cmdline").read_text():
                return int(entry.name)
    return 0


def settings_of(nodes: int, rounds: int, out: Path) -> Settings:
    return parse(
        {
            "scheme": "fedavg",
            "rounds": rounds,
            "eval-every": 0,
            "local-steps": 1,
            "min-clients": nodes,
            "data.name": "synthetic",
            "data.clients": nodes,
            "model.name": "mlp",
            "out": str(out),
            "weights": "uniform",
        }
    )


def measure(nodes: int, length: int, in_memory: bool) -> dict[str, float]:
    """CPU seconds of a round: means over those after the first."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as place:
        root = Path(place)
        deployment = Deployment(root / "private", root / "logs", in_memory)
        deployment.private.mkdir(mode=0o700)
        keys = [root / "private" / f"{number}.key" for number in range(nodes)]
        process = None
        try:
            deployment.start_link()
            for number, key in enumerate(keys):
                make_node_key(key)
                deployment.register(key.with_name(f"{key.name}.pub"), [f"{number:03d}"])
            link = deployment.processes["superlink"].pid
            marks: list[tuple[float, float, float, float]] = []

            def mark(event: object) -> None:
                ours = server_app(deployment.private / "superlink")
                spent = cpu_seconds(ours) if ours else 0.0
                crowded = cpu_seconds(process.pid) if process else 0.0
                marks.append((time.perf_counter(), cpu_seconds(link), spent, crowded))

            run = deployment.start_run(settings_of(nodes, length, root / "run"))
            ca = (deployment.private / "ca.pem").read_bytes()
            process = multiprocessing.get_context("spawn").Process(
                target=crowd, args=(deployment.fleet, ca, keys, str(root / "device"))
            )
            process.start()
            before = cpu_seconds(link)
            folder = RunFolder(root / "run")
            pass_on_rounds(deployment, run, folder, mark)
            failures = sum(len(event["failures"]) for event in folder.read_events(length))
        finally:
            if process is not None:
                process.kill()
            deployment.stop()
    rounds = len(marks) - 1
    first, last = marks[0], marks[-1]
    each = [(b - a) / rounds for a, b in zip(first, last, strict=True)]
    words = ("seconds", "SuperLink", "server app", "nodes")
    return dict(zip(words, each, strict=True)) | {
        "SuperLink until round 1": first[1] - before,
        "failures": failures,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    words = argparse.ArgumentParser(description="What a SuperLink costs by number of nodes")
    words.add_argument("nodes", nargs="*", type=int)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--in-memory", action="store_true")
    asked = words.parse_args()
    for count in asked.nodes or [100, 300, 1000]:
        found = measure(count, asked.rounds, asked.in_memory)
        told = "  ".join(f"{name} {value:.3g}" for name, value in found.items())
        print(f"{count} nodes: {told}", flush=True)
