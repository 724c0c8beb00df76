"""Write the vectors: ``python -m conformance.generate`` at the top of a checkout.

What a file expects is computed by ``reference`` from what the file itself says.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .cases import Plan, plans, told
from .reference.case import Case
from .reference.problems import Shapes, named

FORMAT = "personalized-fl-conformance/1"
TOLERANCE = 1e-9
FOLDER = Path(__file__).with_name("vectors")
PROBLEMS = {
    "quadratic": "Example j of a client has the loss (x - c_j)^T A_j (x - c_j) / 2, x being all "
    "parameters of the model, one after the other. A batch's loss is the mean over its examples.",
    "softmax": "o = V x + d with V = output.weight, d = output.bias; an example's loss is "
    "log(sum exp o) - o_y. A batch's loss is the mean over its examples.",
    "mlp": "h = tanh(W x + b), o = V h + d with W, b = hidden.weight, hidden.bias and V, d = "
    "output.weight, output.bias; an example's loss is log(sum exp o) - o_y. A batch's loss is the "
    "mean over its examples.",
}


def vector(plan: Plan) -> dict[str, Any]:
    """A whole file."""
    scheme, case = import_module(f".reference.{plan.scheme}", __package__), told(plan)
    symbols = {
        name: {
            "value": value,
            "symbol": scheme.SYMBOLS[name][0],
            "meaning": scheme.SYMBOLS[name][1],
        }
        for name, value in plan.symbols.items()
    }
    head = {
        "format": FORMAT,
        "name": plan.name,
        "scheme": plan.scheme,
        "title": scheme.NAME,
        "paper": scheme.PAPER,
        "variant": plan.variant,
        "variant_means": scheme.VARIANTS[plan.variant],
        "reading": scheme.READING,
        "loss": PROBLEMS[plan.problem],
        "tolerance": TOLERANCE,
        "symbols": symbols,
        "quantities": scheme.QUANTITIES,
    }
    body = head | case
    shapes = Case(body).problem.shapes
    return body | {"expected": [plain(one, shapes) for one in scheme.iterates(Case(body))]}


def plain(value: Any, shapes: Shapes) -> Any:
    """A value as JSON has it; vectors are models, by their parameters' names."""
    if isinstance(value, dict):
        return {name: plain(one, shapes) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return {name: one.tolist() for name, one in named(shapes, value).items()}
    return value


def written(value: Any, depth: int = 0) -> str:
    """JSON with a line for every array of numbers, and for every entry of an object."""
    pad, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"[{pad}" + f",{pad}".join(written(one, depth + 1) for one in value) + f"{end}]"
    if isinstance(value, dict) and any(isinstance(one, (dict, list)) for one in value.values()):
        lines = [f"{json.dumps(k)}: {written(one, depth + 1)}" for k, one in value.items()]
        return f"{{{pad}" + f",{pad}".join(lines) + f"{end}}}"
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for plan in plans():
        (FOLDER / f"{plan.name}.json").write_text(written(vector(plan)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
