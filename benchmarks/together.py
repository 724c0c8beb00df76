"""What trials that train as one computation save: CPU seconds of a group together and apart.

``python benchmarks/together.py`` prints a table. Both ways are whole runs, with their messages,
checkpoints and files; each is done once before it is measured, so that nothing is imported or
recorded for the first time. CPU seconds, because a machine may be busy.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bouquet.jobs import Plan, prepared
from bouquet.sweeping import company

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
COMMON: dict[str, Any] = {
    "rounds": 20,
    "nodes": 1,
    "data.name": "digits",
    "data.clients": 20,
    "eval-every": 0,
    "validation": 0.2,
    "evaluate-on": "validation",
}
MODELS: dict[str, dict[str, Any]] = {
    "logistic regression": {"model.name": "linear"},
    "MLP 64-50-10": {"model.name": "mlp", "model.hidden": 50, "model.layers": 1},
}


def spent(work: Callable[[], object]) -> float:
    """CPU seconds of this process, all threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


def train(plans: list[Plan]) -> None:
    """Train runs together."""
    ready = prepared(plans, "inline")
    wrong = company.train(ready, [lambda event: None] * len(ready))
    assert wrong == [None] * len(ready), wrong


def measured(keys: dict[str, Any], folder: Path) -> tuple[float, float]:
    """CPU seconds of a group of trials, apart and together."""

    def plans(name: str) -> list[Plan]:
        return [
            Plan(keys | {"lr": rate, "out": str(folder / name / str(place))})
            for place, rate in enumerate(RATES)
        ]

    train(plans("first")[:1])
    train(plans("second")[:2])
    apart = spent(lambda: [train([one]) for one in plans("apart")])
    together = spent(lambda: train(plans("together")))
    return apart, together


def main() -> None:
    """Print the table."""
    print(f"{len(RATES)} step sizes, {COMMON['rounds']} rounds, {COMMON['data.clients']} clients\n")
    print("| scheme | model | clients a round | steps | apart, s | together, s | share |")
    print("|---|---|---|---|---|---|---|")
    for scheme in ("fedavg", "apfl"):
        for name, model in MODELS.items():
            for clients in (5, 20):
                for steps in (10, 40):
                    own = {"scheme": scheme, "clients-per-round": clients, "local-steps": steps}
                    folder = Path(tempfile.mkdtemp(prefix="bouquet-"))
                    try:
                        apart, together = measured(COMMON | model | own, folder)
                    finally:
                        shutil.rmtree(folder)
                    numbers = f"{apart:.2f} | {together:.2f} | {together / apart:.2f}"
                    print(f"| {scheme} | {name} | {clients} | {steps} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
