"""Problems whose every step is known by algebra, for the schemes' tests."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from strategies.core.descent import Sgd
from strategies.core.scheme import Work
from strategies.core.task import Batch, Task
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
