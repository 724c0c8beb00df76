"""AFL: Mohri, Sivek and Suresh (2019), algorithm 1, the mean over clients weighted by λ."""

from collections.abc import Iterator

import numpy as np

from .case import Case, Iterate
from .problems import Vector

NAME = "AFL"
PAPER = "Mohri, Sivek and Suresh 2019, Agnostic federated learning, algorithm 1"
VARIANTS = {"": ""}
SYMBOLS = {
    "gamma_w": ("γ_w", "Step size of w."),
    "gamma_lambda": ("γ_λ", "Step size of the mixture lambda."),
    "tau": ("τ", "Local steps in a round, one batch each; the paper has one."),
}
QUANTITIES = {
    "w": "The server's model after the round.",
    "w_i": "What each client that took part sends: its model after its local steps.",
    "L": "What else it sends: its loss at the received w, the mean over its batches of the round.",
    "lambda": "Each client's weight in the mixture after the round.",
}
READING = [
    "w moves with the lambda of before the round; lambda moves by the losses at the received w.",
    "lambda starts uniform and is projected onto the simplex in the Euclidean norm.",
    "With one local step and all clients this is algorithm 1 with unconstrained w. With more steps "
    "the clients' models are averaged with the weights lambda, over those sampled. A client not "
    "sampled has slope 0 in lambda, those sampled N / K times theirs, which is right on average.",
]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1, with local steps."""
    gamma_w, gamma_lambda = case.symbol("gamma_w", "gamma_lambda")
    everyone = case.clients
    w = case.start
    mixture = np.full(len(everyone), 1 / len(everyone))
    for batches in case.rounds:
        w_i, losses = {}, {}
        for i, steps in batches.items():
            losses[i] = float(np.mean([case.problem.loss(i, w, batch) for batch in steps]))
            w_i[i] = w
            for batch in steps:
                w_i[i] = w_i[i] - gamma_w * case.problem.gradient(i, w_i[i], batch)
        share = {i: mixture[everyone.index(i)] for i in w_i}
        w = np.sum([share[i] * x for i, x in w_i.items()], axis=0) / sum(share.values())
        scale = len(everyone) / len(losses)
        slope = np.array([scale * losses.get(i, 0.0) for i in everyone])
        mixture = onto_simplex(mixture + gamma_lambda * slope)
        weights = dict(zip(everyone, mixture.tolist(), strict=True))
        yield {"w": w, "w_i": w_i, "L": losses, "lambda": weights}


def onto_simplex(point: Vector) -> Vector:
    """The nearest point whose entries are not negative and sum to 1.

    It is max(point − t, 0) for the t that makes the sum 1: the one for as many of the largest
    entries as stay positive under it.
    """
    falling = np.sort(point)[::-1]
    levels = (np.cumsum(falling) - 1) / np.arange(1, len(point) + 1)
    t = levels[falling > levels][-1]
    nearest: Vector = np.maximum(point - t, 0)
    return nearest
