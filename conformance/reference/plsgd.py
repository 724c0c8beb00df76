"""Personalized local SGD: *Personalization mitigates the perils of local SGD*, algorithm 1."""

from collections.abc import Iterator

import numpy as np

from .case import Case, Iterate

NAME = "personalized local SGD"
PAPER = (
    "Personalization mitigates the perils of local SGD for heterogeneous distributed learning, "
    "algorithm 1"
)
VARIANTS = {"": ""}
SYMBOLS = {
    "eta": ("η", "Inner step size, constant."),
    "K": ("K", "Local steps in a round, one batch each."),
    "alpha": ("α", "theta moves alpha times as far as w."),
    "beta": ("β", "Outer step size, at the server."),
}
QUANTITIES = {
    "w": "The server's model after the round.",
    "w_m": "What each machine that took part sends: its w after its local steps.",
    "theta": "Each machine's theta.",
    "phi": "Each machine's personalized model w + theta (Option I), with the newest w.",
}
READING = [
    "One gradient, taken at w + theta, moves both from the values before the step (lines 6-8).",
    "theta starts at 0. Where some machines sit a round out, line 11 is about the others alone "
    "and their theta rests; the paper has all take part.",
]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1."""
    eta, alpha, beta = case.symbol("eta", "alpha", "beta")
    w = case.start
    theta = dict.fromkeys(case.clients, np.zeros_like(w))
    for batches in case.rounds:
        w_m = {}
        for m, steps in batches.items():
            w_m[m] = w
            for batch in steps:
                slope = case.problem.gradient(m, w_m[m] + theta[m], batch)  # line 6
                theta[m] = theta[m] - alpha * eta * slope  # line 7
                w_m[m] = w_m[m] - eta * slope  # line 8
        w = w + beta * (case.mean(w_m) - w)  # line 11
        phi = {m: w + own for m, own in theta.items()}
        yield {"w": w, "w_m": w_m, "theta": dict(theta), "phi": phi}
