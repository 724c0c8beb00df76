"""Seconds per round, as a ratio to a plain PyTorch loop doing the same steps beside it.

The workloads are the usual ones for simulators on a small machine:

- W1: 100 clients of 600 examples, MLP 784-200-200-10, 20 steps of 20; a: 10 and
  b: 100 clients a round
- W2: logistic regression 60 -> 10, 100 clients a round, 20 steps of 20
- W3: CNN on 28x28 (two 5x5 convolutions, 512 units), 10 clients a round, 10 steps of 32

The plain loop is that of the scheme: FedAvg's, APFL's two models, or first-order Per-FedAvg's two
gradients a step.

Every engine runs in a process of its own, between two plain loops in processes of their own:
machines are not equally fast all day, and the ratio is to the mean of the two. All report
medians over rounds; the first rounds, in which libraries warm up, are left out, and so are
evaluation and start-up. Peak memory is of the whole process tree.

    python benchmarks/speed.py                        # everything, as a Markdown table
    python benchmarks/speed.py W1b W2 --schemes fedavg --engines inline
    python benchmarks/speed.py --growth               # 100 and 1,000 clients a round
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

WORKLOADS: dict[str, dict[str, Any]] = {
    "W1a": {"features": 784, "steps": 20, "batch": 20, "active": 10, "model": "mlp"},
    "W1b": {"features": 784, "steps": 20, "batch": 20, "active": 100, "model": "mlp"},
    "W2": {"features": 60, "steps": 20, "batch": 20, "active": 100, "model": "linear"},
    "W3": {"features": 784, "steps": 10, "batch": 32, "active": 10, "model": "cnn"},
}
EXAMPLES, CLIENTS, LR = 800, 100, 0.05  # 800 of which 600 are for training
INNER_LR = 0.01  # of Per-FedAvg, which is measured in its first-order form
WARM_UP, ROUNDS = 2, 15


def keys(name: str, scheme: str, clients: int = CLIENTS) -> dict[str, object]:
    """A workload as Bouquet's keys."""
    work = WORKLOADS[name]
    return {
        "scheme": scheme,
        "rounds": WARM_UP + ROUNDS,
        "clients-per-round": work["active"] if clients == CLIENTS else clients,
        "local-steps": work["steps"],
        "batch-size": work["batch"],
        "lr": LR,
        "eval-every": 0,
        "data.name": "synthetic",
        "data.clients": clients,
        "data.features": work["features"],
        "data.examples": EXAMPLES,
        "model.name": work["model"],
        **({"perfedavg.mode": "first-order"} if scheme == "perfedavg" else {}),
    }


def plain_loop(name: str, scheme: str, clients: int) -> list[float]:
    """Seconds per round of what one would write without a framework, on one thread."""
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy

    from bouquet.models import build
    from bouquet.problem import problem
    from bouquet.settings import parse

    torch.set_num_threads(1)
    settings = parse(keys(name, scheme, clients))
    data = problem(settings).data
    work = WORKLOADS[name]
    shape = tuple(data.x.shape[1:])
    model, own, mixed = (
        build(settings.model, shape, data.classes, 0, torch.float32) for _ in range(3)
    )
    shared = {key: value.clone() for key, value in model.state_dict().items()}
    kept = {client: dict(shared) for client in data.clients}
    rng = np.random.default_rng(0)
    draws = 3 if scheme == "perfedavg" else 1  # batches a step
    seconds = []
    for _ in range(WARM_UP + ROUNDS):
        chosen = rng.choice(sorted(data.clients), int(settings.run.clients_per_round), False)
        started = time.perf_counter()
        total = {key: torch.zeros_like(value) for key, value in shared.items()}
        for client in chosen:
            train = data.clients[client].train
            order = torch.from_numpy(rng.permutation(train.numpy()))
            model.load_state_dict(shared)
            steps = torch.optim.SGD(model.parameters(), LR)
            if scheme == "apfl":
                own.load_state_dict(kept[client])
                alpha = 0.5
            for step in range(work["steps"]):
                first = draws * step * work["batch"] % (len(order) - draws * work["batch"] + 1)
                batch = order[first : first + work["batch"]]
                x, y = data.x[batch], data.y[batch]
                if scheme == "perfedavg":  # w − α ∇f(w; D), where D′ is looked at
                    model.zero_grad()
                    cross_entropy(model(x), y).backward()
                    with torch.no_grad():
                        for m, w in zip(mixed.parameters(), model.parameters(), strict=True):
                            m.copy_(w - INNER_LR * w.grad)
                    batch = order[first + work["batch"] : first + 2 * work["batch"]]
                    mixed.zero_grad()
                    cross_entropy(mixed(data.x[batch]), data.y[batch]).backward()
                    with torch.no_grad():
                        for m, w in zip(mixed.parameters(), model.parameters(), strict=True):
                            w.sub_(m.grad, alpha=LR)
                    continue
                if scheme == "apfl":
                    with torch.no_grad():
                        trio = zip(
                            mixed.parameters(), own.parameters(), model.parameters(), strict=True
                        )
                        for m, v, w in trio:
                            m.copy_(alpha * v + (1 - alpha) * w)
                    mixed.zero_grad()
                    cross_entropy(mixed(x), y).backward()
                    with torch.no_grad():
                        slopes = [m.grad for m in mixed.parameters()]
                        if step == 0:
                            pairs = zip(own.parameters(), model.parameters(), slopes, strict=True)
                            slope = sum(float(((v - w) * g).sum()) for v, w, g in pairs)
                            new_alpha = min(1.0, max(0.0, alpha - LR * slope))
                        for v, g in zip(own.parameters(), slopes, strict=True):
                            v.sub_(g, alpha=LR * alpha)
                        alpha = new_alpha if step == 0 else alpha
                steps.zero_grad()
                cross_entropy(model(x), y).backward()
                steps.step()
            if scheme == "apfl":
                kept[client] = {key: value.clone() for key, value in own.state_dict().items()}
            for key, value in model.state_dict().items():
                total[key] += value
        shared = {key: value / len(chosen) for key, value in total.items()}
        seconds.append(time.perf_counter() - started)
    return seconds


def bouquet(name: str, scheme: str, engine: str, clients: int) -> list[float]:
    """Seconds per round of a simulation."""
    from bouquet.engines import simulate, with_nodes
    from bouquet.server_app.main import Job
    from bouquet.settings import parse
    from bouquet.storage.runfolder import RunFolder

    seconds: list[float] = []
    settings = with_nodes(parse(keys(name, scheme, clients)))
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            settings,
            RunFolder(Path(folder)),
            observe=lambda event: seconds.append(event["timing"]["round"]),
        )
        simulate([job], engine)
    return seconds


def measure(name: str, scheme: str, engine: str, clients: int = CLIENTS) -> tuple[float, float]:
    """Median seconds per round and peak gigabytes, in a process of its own."""
    command = [sys.executable, __file__, "--child", name, scheme, engine, str(clients)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak, done = [0.0], threading.Event()
    watcher = threading.Thread(target=watch, args=(child.pid, peak, done))
    watcher.start()
    output, _ = child.communicate()
    done.set()
    watcher.join()
    if child.returncode:
        raise SystemExit(f"{name} {scheme} {engine} failed")
    return statistics.median(json.loads(output)[WARM_UP:]), peak[0]


def watch(pid: int, peak: list[float], done: threading.Event) -> None:
    """Note the largest memory of a process and its descendants, shared pages counted once."""
    import psutil

    while not done.wait(0.2):
        try:
            root = psutil.Process(pid)
            family = [root, *root.children(recursive=True)]
            peak[0] = max(peak[0], sum(p.memory_full_info().pss for p in family) / 1e9)
        except psutil.Error:
            continue


def table(names: list[str], schemes: list[str], engines: list[str]) -> None:
    """Measure and print, a line a workload and scheme."""
    print("| workload | scheme | plain loop | " + " | ".join(engines) + " | peak memory |")
    print("|---|---|---|" + "---|" * (len(engines) + 1))
    for name in names:
        for scheme in schemes:
            plain = [measure(name, scheme, "plain")[0]]
            cells, memory = [], []
            for engine in engines:
                seconds, peak = measure(name, scheme, engine)
                plain.append(measure(name, scheme, "plain")[0])
                ratio = seconds / statistics.mean(plain[-2:])
                cells.append(f"{seconds:.3f} s = {ratio:.2f}")
                memory.append(f"{peak:.1f} GB")
            beside = f"{statistics.mean(plain):.3f} s = 1"
            columns = [name, scheme, beside, *cells, ", ".join(memory)]
            print("| " + " | ".join(columns) + " |", flush=True)


def growth(engines: list[str]) -> None:
    """The cost of a client when a round has 100 of them, and 1,000."""
    print("| workload | engine | 100 clients | 1,000 clients | cost per client |")
    print("|---|---|---|---|---|")
    for name in ("W2", "W1b"):
        for engine in engines:
            small, _ = measure(name, "fedavg", engine, 100)
            large, _ = measure(name, "fedavg", engine, 1000)
            ratio = large / small / 10
            print(
                f"| {name} | {engine} | {small:.3f} s | {large:.3f} s | {ratio:.2f} times |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--schemes", nargs="+", default=["fedavg", "apfl", "perfedavg"])
    parser.add_argument("--engines", nargs="+", default=["inline", "ray"])
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, scheme, engine, clients = options.child
        if engine == "plain":
            print(json.dumps(plain_loop(name, scheme, int(clients))))
        else:
            print(json.dumps(bouquet(name, scheme, engine, int(clients))))
    elif options.growth:
        growth(options.engines)
    else:
        table(options.workloads, options.schemes, options.engines)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    main()
