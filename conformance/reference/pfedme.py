"""pFedMe: Dinh, Tran and Nguyen (2020), algorithm 1."""

from collections.abc import Iterator

from .case import Case, Iterate
from .problems import Vector

NAME = "pFedMe"
PAPER = "Dinh, Tran and Nguyen 2020, Personalized federated learning with Moreau envelopes, alg. 1"
VARIANTS = {"": ""}
SYMBOLS = {
    "lambda": ("λ", "Strength of (lambda / 2) ||theta - w||^2."),
    "eta": ("η", "Step size of w_i."),
    "R": ("R", "Local steps in a round, one batch each."),
    "K": ("K", "Gradient steps on theta in a local step, all on its batch."),
    "inner_eta": ("η_θ", "Step size of those (the paper leaves the inner solver open)."),
    "beta": ("β", "How far the server moves to the mean."),
}
QUANTITIES = {
    "w": "The server's model after the round.",
    "w_i": "What each client that took part sends: its w_i after its local steps.",
    "theta": "The personalized model theta_i of each client that has taken part so far.",
}
READING = [
    "Clients that are not sampled rest. (The paper lets all train and samples whose models count: "
    "every round starts at the received w, so that is about where theta_i's steps start.)",
    "theta_i goes on from where it was; in a client's first round it starts at the received w.",
    "The centre is the client's moving w_i. theta_i, not w_i, is the personalized model.",
]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1."""
    pull, eta, inner_steps, inner_eta, beta = case.symbol("lambda", "eta", "K", "inner_eta", "beta")
    w = case.start
    theta: dict[str, Vector] = {}
    for batches in case.rounds:
        w_i = {}
        for i, steps in batches.items():
            w_i[i] = w
            own = theta.get(i, w)
            for batch in steps:
                for _ in range(inner_steps):
                    slope = case.problem.gradient(i, own, batch) + pull * (own - w_i[i])
                    own = own - inner_eta * slope
                w_i[i] = w_i[i] - eta * pull * (w_i[i] - own)
            theta[i] = own
        w = (1 - beta) * w + beta * case.mean(w_i)
        yield {"w": w, "w_i": w_i, "theta": dict(theta)}
