"""Problems whose every step is known by algebra, for the schemes' tests."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bouquet.core.descent import Sgd
from bouquet.core.round import play, row_of
from bouquet.core.scheme import AnyScheme, Federation, Member, Work
from bouquet.core.task import Batch, Task
from bouquet.models import ModelConfig, build
from tests.conftest import Quadratics

EXACT = 1e-9


def scalar_work(steps: int, lr: float, curvature: float, optimum: float) -> Work:
    """Local work on f(w) = ½ a (w − c)² with one number w."""

    class Point(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.w.expand(len(x), -1)  # type: ignore[operator]

    point = Point()
    point.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    task = Task(point, {"w": torch.zeros(1, dtype=torch.float64)}, classes=0)
    one = torch.ones(1, dtype=torch.float64)
    batch = Batch(
        one.reshape(1, 1, 1) * curvature, one.reshape(1, 1) * optimum, one, one.reshape(())
    )
    return Work(task, Sgd(lr), [batch] * steps)


def number(value: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([value], dtype=torch.float64)}


def clients(problem: Quadratics) -> list[tuple[Any, Any]]:
    return list(zip(problem.a, problem.c, strict=True))


def descended(w: Any, a: Any, c: Any, lr: float, steps: int) -> Any:
    shrink = np.linalg.matrix_power(np.eye(len(w)) - lr * a, steps)
    return c + shrink @ (w - c)


def drive(
    scheme: AnyScheme,
    problem: Quadratics,
    *,
    rounds: int,
    steps: int,
    lr: float,
    sampled: int = 0,
) -> tuple[Any, list[Any]]:
    """A scheme's own methods on quadratics, without messages and files: for long runs.

    Returns the server's state and each client's predictor.
    """
    rng = np.random.default_rng(0)
    ids = [f"{k:03}" for k in range(len(problem.a))]
    federation = Federation(
        {one: Member(1) for one in ids}, "vector", lr=lr, steps=steps, sampled=sampled
    )
    task = vector_task(problem.init)
    batches = [
        Batch(
            torch.tensor(a).unsqueeze(0),
            torch.tensor(c).unsqueeze(0),
            torch.ones(1, dtype=torch.float64),
            torch.ones((), dtype=torch.float64),
            torch.zeros(1, dtype=torch.int64),
        )
        for a, c in clients(problem)
    ]
    server = scheme.welcome(scheme.init_server(task), federation)
    personal = {one: scheme.init_personal(task, 1) for one in ids}

    def work(k: int) -> Work:
        return Work(task, Sgd(lr), [batches[k]] * steps, steps, luck=rng.random())

    for number in range(1, rounds + 1):
        chosen = sorted(rng.choice(len(ids), sampled or len(ids), replace=False))
        works = {ids[k]: work(k) for k in chosen}
        server, personal = play(scheme, server, federation, works, personal, number)
    received = scheme.downlink(server, ids)
    models = [
        scheme.predictor(work(k), row_of(scheme, received, k), personal[one])["w"].numpy()
        for k, one in enumerate(ids)
    ]
    return server, models


def vector_task(init: Any) -> Task:
    module = build(ModelConfig(name="vector"), (len(init), len(init)), 0, 0, torch.float64)
    return Task(module, {"w": torch.tensor(init)}, classes=0)
