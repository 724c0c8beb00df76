"""FedU: Dinh, Vu, Tran, Dao and Zhang (2021), algorithm 1."""

from collections.abc import Iterator

import numpy as np

from .case import Case, Iterate

NAME = "FedU"
PAPER = (
    "Dinh et al. 2021, FedU: federated multi-task learning with Laplacian regularization, alg. 1"
)
VARIANTS = {
    "all": "Algorithm 1, lines 14-16: of a neighbour not sampled, its last model counts.",
    "sampled": "The formula in section IV-A: the sum is over the sampled neighbours alone.",
}
SYMBOLS = {
    "mu": ("μ", "Local step size."),
    "R": ("R", "Local steps in a round, one batch each; the mixing step has μ̃ = μR."),
    "eta": ("η", "Strength of the pull towards the neighbours."),
    "a": ("a_kl", "Weights of the graph, rows and columns in the order of the clients."),
}
QUANTITIES = {
    "w_kR": "What each client that took part sends: its model after R local steps.",
    "w_k": "Each client's model after the round.",
}
READING = [
    "All sampled models are mixed at once, from the values before (Jacobi, not in place).",
    "The model of a client that is not sampled does not change (line 16).",
]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1."""
    mu, steps, eta = case.symbol("mu", "R", "eta")
    a = np.asarray(case.symbol("a"))
    w = dict.fromkeys(case.clients, case.start)
    for batches in case.rounds:
        sent = {}
        for k, own in batches.items():
            sent[k] = w[k]
            for batch in own:  # line 9
                sent[k] = sent[k] - mu * case.problem.gradient(k, sent[k], batch)
        known = w | sent  # line 14
        others = list(sent) if case.variant == "sampled" else case.clients
        place = {k: n for n, k in enumerate(case.clients)}
        for k in sent:  # line 15; `known` is not changed meanwhile
            pull = sum(a[place[k], place[one]] * (known[k] - known[one]) for one in others)
            w[k] = known[k] - mu * steps * eta * pull
        yield {"w_kR": sent, "w_k": dict(w)}
