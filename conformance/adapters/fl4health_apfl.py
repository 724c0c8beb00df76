"""FL4Health's APFL on the vectors: its own client trains, its own function averages.

``python -m conformance.adapters.fl4health_apfl VECTORS OUTPUT`` at the top of a checkout, in an
environment with FL4Health 0.4.2, writes what ``check.py`` takes. With ``--explain`` instead of
OUTPUT it compares FL4Health with what we understand it to compute.
"""

import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl4health.clients.apfl_client import ApflClient
from fl4health.model_bases.apfl_base import ApflModule
from fl4health.strategies.aggregate_utils import aggregate_results
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ..check import compare, find, read_vector, table
from ..reference.case import Case, Iterate


class Point(nn.Module):
    """A quadratic's model: it says its point, whatever the example."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """The point, once for each example."""
        return self.x.expand(len(inputs), -1)


class Quadratic(nn.Module):
    """Mean of (x - c) A (x - c) / 2; a target is an example's A and c, one after the other."""

    def forward(self, said: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        size = said.shape[1]
        a, c = target[:, :-size].reshape(-1, size, size), target[:, -size:]
        return 0.5 * torch.einsum("ni,nij,nj->n", said - c, a, said - c).mean()


def model_of(vector: dict[str, Any]) -> nn.Module:
    """The problem's model with the initial weights."""
    initial = {n: torch.tensor(v, dtype=torch.float64) for n, v in vector["initial"].items()}
    if vector["problem"] == "quadratic":
        model: nn.Module = Point(len(vector["initial"]["x"]))
    else:
        parts: dict[str, nn.Module] = {}
        for layer in [n.removesuffix(".weight") for n in initial if n.endswith(".weight")]:
            parts |= {"tanh": nn.Tanh()} if parts else {}
            width, inputs = initial[f"{layer}.weight"].shape
            parts[layer] = nn.Linear(inputs, width, dtype=torch.float64)
        model = nn.Sequential(OrderedDict(parts))
    model.load_state_dict(initial)
    return model


class Client(ApflClient):  # type: ignore[misc]
    """A client as FL4Health's users write it: model, optimizers, data and loss."""

    def __init__(self, vector: dict[str, Any], client: str) -> None:
        super().__init__(data_path=Path(), metrics=[], device=torch.device("cpu"))
        self.vector, self.name = vector, client
        self.symbols = {name: one["value"] for name, one in vector["symbols"].items()}

    def get_model(self, config: Any) -> ApflModule:
        """Its twin models, local and global, start equal."""
        return ApflModule(
            model_of(self.vector),
            adaptive_alpha=self.vector["variant"] == "adaptive",
            alpha=self.symbols["alpha"],
            alpha_lr=self.symbols["eta_alpha"],
        )

    def get_optimizer(self, config: Any) -> dict[str, torch.optim.Optimizer]:
        """Plain gradient steps for both."""
        models = {"global": self.model.global_model, "local": self.model.local_model}
        return {n: torch.optim.SGD(m.parameters(), self.symbols["eta"]) for n, m in models.items()}

    def get_data_loaders(self, config: Any) -> tuple[Any, Any]:
        """The batches of all its rounds, in order; its iterator goes on from round to round."""
        own = {n: np.asarray(v) for n, v in self.vector["clients"][self.name].items()}
        if self.vector["problem"] == "quadratic":
            y = np.concatenate([own["A"].reshape(len(own["c"]), -1), own["c"]], axis=1)
            data = TensorDataset(torch.zeros(len(y), 1), torch.tensor(y))
        else:
            data = TensorDataset(torch.tensor(own["x"]), torch.tensor(own["y"]))
        rounds = [one["batches"].get(self.name, []) for one in self.vector["rounds"]]
        batches = [batch for round_ in rounds for batch in round_]
        return DataLoader(data, batch_sampler=batches), DataLoader(data)

    def get_criterion(self, config: Any) -> nn.Module:
        """The problem's loss."""
        return Quadratic() if self.vector["problem"] == "quadratic" else nn.CrossEntropyLoss()

    def told(self, which: str) -> dict[str, Any]:
        """One of the twins by the file's names."""
        state = getattr(self.model, f"{which}_model").state_dict()
        return {name: value.tolist() for name, value in state.items()}


def played(vector: dict[str, Any]) -> dict[str, Any]:
    """FL4Health's iterates. It mixes predictions, so there is no v_bar to tell."""
    config = {"current_server_round": 1, "local_steps": vector["symbols"]["tau"]["value"]}
    clients = {name: Client(vector, name) for name in vector["clients"]}
    # Asked for its parameters, a client sets itself up. They share memory with its model; a
    # network would have copied them. The first round sends both twins.
    first, *_ = [client.get_parameters(config) for client in clients.values()]
    w = [array.copy() for array in first]
    names = list(model_of(vector).state_dict())
    iterates = []
    for number, round_ in enumerate(vector["rounds"], start=1):
        config["current_server_round"] = number
        results = [clients[name].fit(w, config)[:2] for name in round_["batches"]]
        w = aggregate_results(results, weighted=False)
        shared = {name: value.tolist() for name, value in zip(names, w, strict=True)}
        iterates.append(
            {
                "w": shared,
                "w_i": {name: clients[name].told("global") for name in round_["batches"]},
                "v": {name: client.told("local") for name, client in clients.items()},
                "alpha": {name: float(client.model.alpha) for name, client in clients.items()},
            }
        )
    return {"name": vector["name"], "iterates": iterates}


def understood(case: Case) -> Iterator[Iterate]:
    """What FL4Health computes where the model is linear, as we read it."""
    eta, eta_alpha, start = case.symbol("eta", "eta_alpha", "alpha")
    w, gradient = case.start, case.problem.gradient
    v, alpha = dict.fromkeys(case.clients, w), dict.fromkeys(case.clients, start)
    for batches in case.rounds:
        w_i = {}
        for i, steps in batches.items():
            mine, a = w, alpha[i]
            for t, batch in enumerate(steps):
                mine = mine - eta * gradient(i, mine, batch)  # w moves first
                at_mixed = gradient(i, a * v[i] + (1 - a) * mine, batch)  # with the new w
                v[i] = v[i] - eta * a * at_mixed
                if case.variant == "adaptive" and t == 0:  # after the step of v
                    one, other = float(np.float32(a)), float(np.float32(1 - a))
                    factor = a * one + (1 - a) * other  # a^2 + (1 - a)^2, half in single precision
                    slope = factor * ((v[i] - mine) @ at_mixed) + 0.02 * a
                    a = float(np.clip(a - eta_alpha * slope, 0, 1))
            w_i[i], alpha[i] = mine, a
        w = case.mean(w_i)
        yield {"w": w, "w_i": w_i, "v": dict(v), "alpha": dict(alpha)}


def main(name: str, output: str) -> None:
    """Write the iterates, or explain them."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    vector = read_vector(find(name))
    found = played(vector)
    if output != "--explain":
        Path(output).write_text(json.dumps(found), encoding="utf-8")
        return
    plain = import_module("..generate", __package__).plain
    case = Case(vector)
    shapes = case.problem.shapes
    vector["expected"] = [plain(one, shapes) for one in understood(case)]
    del vector["quantities"]["v_bar"]
    print(table(compare(vector, found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
