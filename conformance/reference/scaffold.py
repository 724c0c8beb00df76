"""SCAFFOLD: Karimireddy et al. (2020), algorithm 1 with option II."""

from collections.abc import Iterator

import numpy as np

from .case import Case, Iterate

NAME = "SCAFFOLD"
PAPER = "Karimireddy et al. 2020, SCAFFOLD: stochastic controlled averaging, algorithm 1, option II"
VARIANTS = {"": ""}
SYMBOLS = {
    "eta_l": ("η_l", "Local step size."),
    "eta_g": ("η_g", "Global step size, at the server."),
    "K": ("K", "Local steps in a round, one batch each."),
}
QUANTITIES = {
    "x": "The server's model after the round.",
    "c": "The server's control variate.",
    "delta_y": "What each client that took part sends: the change of its model, y_i - x.",
    "c_i": "Each client's control variate.",
}
READING = ["c and every c_i start at 0. A client not sampled keeps its c_i. The mean is uniform."]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1."""
    eta_l, eta_g, local_steps = case.symbol("eta_l", "eta_g", "K")
    x = case.start
    c = np.zeros_like(x)
    c_i = dict.fromkeys(case.clients, c)
    for batches in case.rounds:
        delta_y, delta_c = {}, {}
        for i, steps in batches.items():
            y = x
            for batch in steps:
                y = y - eta_l * (case.problem.gradient(i, y, batch) - c_i[i] + c)
            new = c_i[i] - c + (x - y) / (local_steps * eta_l)  # option II
            delta_y[i], delta_c[i] = y - x, new - c_i[i]
            c_i[i] = new
        x = x + eta_g * case.mean(delta_y)
        c = c + len(delta_c) / len(case.clients) * case.mean(delta_c)
        yield {"x": x, "c": c, "delta_y": delta_y, "c_i": dict(c_i)}
