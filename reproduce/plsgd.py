"""The quadratic examples of the personalized local SGD paper, beside their algebra."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

import bouquet
from bouquet.colours import PALETTE, colour_of
from bouquet.core.descent import Sgd
from bouquet.core.federation import Federation, Member
from bouquet.core.round import play
from bouquet.core.scheme import Work
from bouquet.core.task import Batch, Task
from bouquet.models import ModelConfig, build
from bouquet.report.looks import canvas, saved
from bouquet.strategies.plsgd import PLSGD

Array = NDArray[np.float64]
Row = tuple[str, str, float, float]
# F(v) = ½ (v − c)ᵀ A (v − c), up to a constant.
FIGURE_1 = [
    (np.diag([2.0, 4.0]), np.array([7.0, 18.0])),
    (np.diag([4.0, 2.0]), np.array([18.0, 13.0])),
]
START = np.array([2.0, 2.0])
ALPHAS = {"local GD": 0.0, "personalized local GD": 1.0}


def figure1b(out: Path) -> list[Row]:
    """Where both methods end after 8 rounds of 3 steps of 0.05: whole runs beside the recursion."""
    rows = []
    figure = canvas(9, 4.2)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, (words, alpha) in zip(axes, ALPHAS.items(), strict=True):
        problem = {
            "init": START.tolist(),
            "clients": [{"A": a.tolist(), "c": c.tolist()} for a, c in FIGURE_1],
        }
        (out / "problem.json").write_text(json.dumps(problem))
        place = out / words.replace(" ", "-")
        run = (
            bouquet.load(place)
            if (place / "summary.json").exists()
            else bouquet.simulate(
                "plsgd", data="quadratic", out=place, **{"data.path": str(out / "problem.json")},
                rounds=8, local_steps=3, lr=0.05, dtype="float64", batch_size=0, weights="uniform",
                plsgd={"alpha": alpha}, save_predictors=True, progress=False,
            )
        )  # fmt: skip
        paths = trajectories(alpha)
        for number, (_, optimum) in enumerate(FIGURE_1):
            ours = load_file(run.folder / "predictors" / f"{number:03d}.safetensors")["w"]
            for place_, name in enumerate("xy"):
                label = f"{words}, machine {number + 1}, {name} after 8 rounds"
                rows.append(
                    (
                        f"{words}-{number}-{name}",
                        label,
                        float(paths[number][-1][place_]),
                        float(ours[place_]),
                    )
                )
            way, colour = np.array(paths[number]), PALETTE[number][0]
            axis.plot(
                way[:, 0],
                way[:, 1],
                marker="o",
                markersize=2.5,
                color=colour,
                label=f"machine {number + 1}",
            )
            axis.plot(*optimum, marker="*", markersize=12, color=colour, linestyle="")
        axis.set(title=words, xlabel="v[1]", ylabel="v[2]" if not alpha else "")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    (out / "trajectories.png").write_bytes(saved(figure, "png"))
    return rows


def trajectories(alpha: float) -> list[list[Array]]:
    """w_m + θ_m of both machines at every step, by algorithm 1 in NumPy."""
    shared, theta = START, [np.zeros(2), np.zeros(2)]
    ways: list[list[Array]] = [[START], [START]]
    for _ in range(8):
        ends = []
        for number, (a, c) in enumerate(FIGURE_1):
            w = shared
            for _ in range(3):
                slope = a @ (w + theta[number] - c)
                w, theta[number] = w - 0.05 * slope, theta[number] - alpha * 0.05 * slope
                ways[number].append(w + theta[number])
            ends.append(w)
        shared = (ends[0] + ends[1]) / 2
        for number in range(2):
            ways[number].append(shared + theta[number])
    return ways


def figure2(out: Path) -> list[Row]:
    """The consensus error at every step: its mean beside equation 20, and under equation 21."""
    steps, rounds = 10, 10
    without = consensus(0.0, 0.5, steps, rounds)
    own = consensus(1.0, 0.25, steps, rounds)
    eta, fast = 0.5, 0.5
    expected = 1 + (1 - (1 - eta) ** (2 * steps)) / ((2 - eta) * eta * steps)
    expected -= 2 * (1 - (1 - eta) ** steps) / (eta * steps)
    bound = 0.5 * (1 - (1 - (1 - fast) ** steps) / (fast * steps))
    bound *= (1 - (1 - fast) ** rounds) / (fast * rounds)
    figure = canvas(7, 3.8)
    axis = figure.subplots()
    axis.plot(without, color=colour_of("fedavg"), label="local SGD")
    axis.plot(own, color=colour_of("plsgd"), label="with personalization")
    axis.set(xlabel="time t", ylabel="consensus error")
    figure.legend(loc="outside lower center", ncols=2)
    (out / "consensus.png").write_bytes(saved(figure, "png"))
    mean = float(np.mean(own))
    return [
        (
            "without",
            "mean consensus error without personalization (equation 20)",
            expected,
            float(np.mean(without)),
        ),
        (
            "within",
            "with it: share of the mean above the bound (equation 21)",
            0.0,
            max(0.0, mean - bound),
        ),
    ]


def consensus(alpha: float, lr: float, steps: int, rounds: int) -> list[float]:
    """½ Σ_m ‖w_m − w̄‖² at every step on ½ (v ∓ 1)², by the scheme's own methods."""
    start = np.array([3.0])
    module = build(ModelConfig(name="vector"), (1, 1), 0, 0, torch.float64)
    task = Task(module, {"w": torch.tensor(start)}, classes=0)
    one = torch.ones(1, dtype=torch.float64)
    ids = ["000", "001"]
    members = Federation({who: Member(1) for who in ids}, "vector", lr=lr, steps=steps)
    scheme = PLSGD(alpha=alpha)
    server, personal = scheme.init_server(task), {who: scheme.init_personal(task, 1) for who in ids}
    errors = []
    for number in range(1, rounds + 1):
        seen = {who: [float(server.w["w"])] for who in ids}
        works = {}
        for who, optimum in zip(ids, (-1.0, 1.0), strict=True):
            batch = Batch(one.reshape(1, 1, 1), one.reshape(1, 1) * optimum, one, one.reshape(()))
            works[who] = Work(
                task, Sgd(lr), [batch] * steps, steps,
                watch=_noting(seen[who]),
            )  # fmt: skip
        server, personal = play(scheme, server, members, works, personal, number)
        errors += [float(np.var([seen[who][t] for who in ids])) for t in range(steps)]
    return errors


def _noting(values: list[float]) -> Callable[[Any, Any, Any], None]:
    """Write down where w is after every step."""
    return lambda before, after, batch: values.append(float(after.w["w"]))
