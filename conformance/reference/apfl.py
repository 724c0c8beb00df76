"""APFL: Deng, Kamani and Mahdavi (2020), algorithm 1 and equation 10."""

from collections.abc import Iterator

import numpy as np

from .case import Case, Iterate

NAME = "APFL"
PAPER = "Deng, Kamani and Mahdavi 2020, Adaptive personalized federated learning, algorithm 1"
VARIANTS = {
    "fixed": "alpha_i stays as it is.",
    "adaptive": "alpha_i moves by equation 10 in the first local step of each round.",
}
SYMBOLS = {
    "eta": ("η", "Step size of w_i and v_i."),
    "tau": ("τ", "Local steps in a round, one batch each."),
    "alpha": ("α", "Where every alpha_i starts."),
    "eta_alpha": ("η_α", "Step size of alpha_i; the paper takes η. Not used where alpha is fixed."),
}
QUANTITIES = {
    "w": "The server's model after the round.",
    "w_i": "What each client that took part sends: its w_i after its local steps.",
    "v": "Each client's own model v_i.",
    "alpha": "Each client's mixing weight alpha_i.",
    "v_bar": "Each client's personalized model alpha_i v_i + (1 - alpha_i) w, with the newest w.",
}
READING = [
    "w_i, v_i and alpha_i all move from the values before the step (t - 1), on one batch.",
    "The gradient in v of f(alpha v + (1 - alpha) w) has the factor alpha.",
    "Equation 10 moves alpha_i once a round, in the first local step; then it is kept in [0, 1].",
    "Models are mixed, not what they predict. v_i starts at the initial w. The mean is uniform.",
]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1."""
    eta, eta_alpha, alpha_start = case.symbol("eta", "eta_alpha", "alpha")
    gradient = case.problem.gradient
    w = case.start
    v = dict.fromkeys(case.clients, w)
    alpha = dict.fromkeys(case.clients, alpha_start)
    for batches in case.rounds:
        w_i = {}
        for i, steps in batches.items():
            mine = w
            for t, batch in enumerate(steps):
                mixed = alpha[i] * v[i] + (1 - alpha[i]) * mine
                at_mixed = gradient(i, mixed, batch)
                new_v = v[i] - eta * alpha[i] * at_mixed
                if case.variant == "adaptive" and t == 0:  # equation 10
                    slope = (v[i] - mine) @ at_mixed
                    alpha[i] = float(np.clip(alpha[i] - eta_alpha * slope, 0, 1))
                mine, v[i] = mine - eta * gradient(i, mine, batch), new_v
            w_i[i] = mine
        w = case.mean(w_i)
        v_bar = {i: alpha[i] * v[i] + (1 - alpha[i]) * w for i in case.clients}
        yield {"w": w, "w_i": w_i, "v": dict(v), "alpha": dict(alpha), "v_bar": v_bar}
