"""Problems whose every step is known by algebra, for the schemes' tests."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models import ModelConfig, build
from strategies.core.descent import Sgd
from strategies.core.scheme import Federation, Member, Round, Scheme, Work
from strategies.core.task import Batch, Task
from strategies.core.trees import flatten, stack_trees, unflatten
from tests.conftest import Quadratics

EXACT = 1e-9


def scalar_work(config: Any, steps: int, lr: float, curvature: float, optimum: float) -> Work[Any]:
    """Local work on f(w) = ½ a (w − c)² with one number w."""

    class Point(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.w.expand(len(x), -1)  # type: ignore[no-any-return,operator]

    point = Point()
    point.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    task = Task(point, {"w": torch.zeros(1, dtype=torch.float64)}, classes=0)
    one = torch.ones(1, dtype=torch.float64)
    batch = Batch(
        one.reshape(1, 1, 1) * curvature, one.reshape(1, 1) * optimum, one, one.reshape(())
    )
    return Work(config, task, Sgd(lr), [batch] * steps)


def number(value: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([value], dtype=torch.float64)}


def clients(problem: Quadratics) -> list[tuple[Any, Any]]:
    return list(zip(problem.a, problem.c, strict=True))


def descended(w: Any, a: Any, c: Any, lr: float, steps: int) -> Any:
    shrink = np.linalg.matrix_power(np.eye(len(w)) - lr * a, steps)
    return c + shrink @ (w - c)


def drive(
    scheme: Scheme,
    config: Any,
    problem: Quadratics,
    *,
    rounds: int,
    steps: int,
    lr: float,
    sampled: int = 0,
) -> tuple[Any, list[Any]]:
    """A scheme's own functions on quadratics, without messages and files: for long runs.

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
    server = scheme.welcome(config, scheme.init_server(config, task), federation)
    personal = [scheme.init_personal(config, task, 1) for _ in ids]

    def work(k: int, number: int) -> Work[Any]:
        return Work(config, task, Sgd(lr), [batches[k]] * steps, steps, number, rng.random())

    def received(k: int) -> Any:
        payload = scheme.downlink(config, server, [ids[k]])
        own = {name: getattr(payload, name) for name in scheme.own}
        return payload._replace(
            **{
                name: part[0] if isinstance(part, Tensor) else {n: v[0] for n, v in part.items()}
                for name, part in own.items()
            }
        )

    for number in range(1, rounds + 1):
        chosen = sorted(rng.choice(len(ids), sampled or len(ids), replace=False))
        uploads = []
        for k in chosen:
            upload, personal[k] = scheme.local_update(work(k, number), received(k), personal[k])
            uploads.append(flatten(upload))
        weights = scheme.weigh(config, server, {ids[k]: 1.0 for k in chosen})
        shares = torch.tensor([weights[ids[k]] for k in chosen], dtype=torch.float64)
        mean = {}
        for name, value in stack_trees(uploads).items():
            each = name.partition("/")[0] in scheme.each
            mean[name] = value if each else torch.tensordot(shares / shares.sum(), value, dims=1)
        named = tuple(ids[k] for k in chosen)
        uploads_of = Round(unflatten(scheme.upload, mean), named, federation, number)
        server = scheme.aggregate(config, server, uploads_of)
    models = [
        scheme.predictor(work(k, rounds), received(k), personal[k])["w"].numpy()
        for k in range(len(ids))
    ]
    return server, models


def vector_task(init: Any) -> Task:
    module = build(ModelConfig(name="vector"), (len(init), len(init)), 0, 0, torch.float64)
    return Task(module, {"w": torch.tensor(init)}, classes=0)
