"""The losses f_i, with gradients and products with the Hessian by formula.

A model is one vector here; ``shapes`` says which of its entries are which parameter, in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]
Examples = Mapping[str, Array]


class Problem(Protocol):
    """A loss for each batch of each client."""

    @property
    def shapes(self) -> Shapes:
        """The model's parameters."""

    def loss(self, client: str, x: Vector, batch: Sequence[int]) -> float:
        """f_i(x; ξ): the mean over the batch."""

    def gradient(self, client: str, x: Vector, batch: Sequence[int]) -> Vector:
        """∇f_i(x; ξ)."""

    def curvature(self, client: str, x: Vector, batch: Sequence[int], along: Vector) -> Vector:
        """∇²f_i(x; ξ) times a direction."""


def flat(model: Mapping[str, Any]) -> Vector:
    """A model's parameters one after the other."""
    return np.concatenate([np.asarray(value, dtype=np.float64).ravel() for value in model.values()])


def named(shapes: Shapes, x: Vector) -> dict[str, Vector]:
    """The parameters by name."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(x, ends[:-1])
    return {n: part.reshape(s) for (n, s), part in zip(shapes.items(), parts, strict=True)}


@dataclass(frozen=True)
class Quadratic:
    """Example j of a client has the loss ½ (x − c_j)ᵀ A_j (x − c_j)."""

    shapes: Shapes
    clients: Mapping[str, Examples]

    def _batch(self, client: str, batch: Sequence[int]) -> tuple[Vector, Vector]:
        own = self.clients[client]
        return own["A"][list(batch)], own["c"][list(batch)]

    def loss(self, client: str, x: Vector, batch: Sequence[int]) -> float:
        """The mean of the examples' quadratics."""
        a, c = self._batch(client, batch)
        return float(np.mean(0.5 * np.einsum("ni,nij,nj->n", x - c, a, x - c)))

    def gradient(self, client: str, x: Vector, batch: Sequence[int]) -> Vector:
        """The mean of A_j (x − c_j)."""
        a, c = self._batch(client, batch)
        slope: Vector = np.einsum("nij,nj->ni", a, x - c).mean(axis=0)
        return slope

    def curvature(self, client: str, x: Vector, batch: Sequence[int], along: Vector) -> Vector:
        """The mean of A_j, times the direction."""
        a, _ = self._batch(client, batch)
        product: Vector = a.mean(axis=0) @ along
        return product


@dataclass(frozen=True)
class Network:
    """Softmax cross-entropy of a linear model, or of one with a hidden layer of tanh.

    With the parameters W, b of the hidden layer (where there is one) and V, d of the output layer:
    h = tanh(W x + b) or h = x, o = V h + d, loss = log Σ exp o − o_y.
    """

    shapes: Shapes
    clients: Mapping[str, Examples]

    def _batch(self, client: str, batch: Sequence[int]) -> tuple[Vector, Vector]:
        """Inputs, and the labels as rows of 0 and 1."""
        own = self.clients[client]
        classes = self.shapes["output.bias"][0]
        return own["x"][list(batch)], np.eye(classes)[own["y"][list(batch)]]

    def _forward(self, model: Mapping[str, Vector], x: Vector) -> tuple[Vector, Vector]:
        hidden = "hidden.weight" in model
        h = np.tanh(x @ model["hidden.weight"].T + model["hidden.bias"]) if hidden else x
        return h, h @ model["output.weight"].T + model["output.bias"]

    def loss(self, client: str, x: Vector, batch: Sequence[int]) -> float:
        """The mean cross-entropy."""
        inputs, labels = self._batch(client, batch)
        _, o = self._forward(named(self.shapes, x), inputs)
        return float(np.mean(_log_sum_exp(o) - (labels * o).sum(axis=1)))

    def gradient(self, client: str, x: Vector, batch: Sequence[int]) -> Vector:
        """Backward through the layers."""
        model, (inputs, labels) = named(self.shapes, x), self._batch(client, batch)
        h, o = self._forward(model, inputs)
        slope_o = (_softmax(o) - labels) / len(inputs)
        output = {"output.weight": slope_o.T @ h, "output.bias": slope_o.sum(axis=0)}
        if "hidden.weight" not in model:
            return flat(output)
        slope_z = (slope_o @ model["output.weight"]) * (1 - h**2)
        return flat(
            {"hidden.weight": slope_z.T @ inputs, "hidden.bias": slope_z.sum(axis=0), **output}
        )

    def curvature(self, client: str, x: Vector, batch: Sequence[int], along: Vector) -> Vector:
        """The derivative of every line of the gradient along a direction (Pearlmutter 1994)."""
        model, (inputs, labels) = named(self.shapes, x), self._batch(client, batch)
        moved, hidden = named(self.shapes, along), "hidden.weight" in model
        h, o = self._forward(model, inputs)
        h_moved = np.zeros_like(h)
        if hidden:
            z_moved = inputs @ moved["hidden.weight"].T + moved["hidden.bias"]
            h_moved = (1 - h**2) * z_moved
        o_moved = h @ moved["output.weight"].T + moved["output.bias"]
        o_moved = o_moved + h_moved @ model["output.weight"].T
        p = _softmax(o)
        p_moved = p * (o_moved - (p * o_moved).sum(axis=1, keepdims=True))
        slope_o, slope_o_moved = (p - labels) / len(inputs), p_moved / len(inputs)
        output = {
            "output.weight": slope_o_moved.T @ h + slope_o.T @ h_moved,
            "output.bias": slope_o_moved.sum(axis=0),
        }
        if not hidden:
            return flat(output)
        slope_h = slope_o @ model["output.weight"]
        slope_h_moved = slope_o_moved @ model["output.weight"] + slope_o @ moved["output.weight"]
        slope_z_moved = slope_h_moved * (1 - h**2) - slope_h * 2 * h * h_moved
        first = {
            "hidden.weight": slope_z_moved.T @ inputs,
            "hidden.bias": slope_z_moved.sum(axis=0),
        }
        return flat({**first, **output})


def _log_sum_exp(o: Vector) -> Vector:
    most = o.max(axis=1)
    summed: Vector = most + np.log(np.exp(o - most[:, None]).sum(axis=1))
    return summed


def _softmax(o: Vector) -> Vector:
    return np.exp(o - _log_sum_exp(o)[:, None])


def problem(
    kind: str, model: Mapping[str, Any], clients: Mapping[str, Mapping[str, Any]]
) -> Problem:
    """A problem as a file of vectors has it."""
    shapes = {name: np.asarray(value).shape for name, value in model.items()}
    held = {i: {n: np.asarray(value) for n, value in own.items()} for i, own in clients.items()}
    return Quadratic(shapes, held) if kind == "quadratic" else Network(shapes, held)
