"""Ditto: Li, Hu, Beirami and Smith (2021), algorithm 1."""

from collections.abc import Iterator

from .case import Case, Iterate

NAME = "Ditto"
PAPER = "Li et al. 2021, Ditto: fair and robust federated learning through personalization, alg. 1"
VARIANTS = {"": ""}
SYMBOLS = {
    "eta": ("η", "Step size of w and of v_k."),
    "lambda": ("λ", "Pull of v_k towards the shared model."),
    "tau": ("τ", "Local steps on w, on the batches 'w' (the paper leaves the solver open)."),
    "s": ("s", "Steps on v_k, on the batches 'v'."),
}
QUANTITIES = {
    "w": "The server's model after the round.",
    "w_k": "What each client that took part sends: its w after its local steps.",
    "v": "Each client's own model v_k.",
}
READING = [
    "v_k is pulled towards the w received in the round, not towards the client's moving copy.",
    "The solver of w is plain local SGD. v_k starts at the initial w. The mean is uniform.",
]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1."""
    eta, pull = case.symbol("eta", "lambda")
    w = case.start
    v = dict.fromkeys(case.clients, w)
    for batches in case.rounds:
        w_k = {}
        for k, steps in batches.items():
            for batch in steps["v"]:
                slope = case.problem.gradient(k, v[k], batch) + pull * (v[k] - w)
                v[k] = v[k] - eta * slope
            w_k[k] = w
            for batch in steps["w"]:
                w_k[k] = w_k[k] - eta * case.problem.gradient(k, w_k[k], batch)
        w = case.mean(w_k)
        yield {"w": w, "w_k": w_k, "v": dict(v)}
