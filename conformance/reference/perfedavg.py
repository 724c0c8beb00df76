"""Per-FedAvg: Fallah, Mokhtari and Ozdaglar (2020), algorithm 1 and appendix G."""

from collections.abc import Iterator

from .case import Case, Iterate

NAME = "Per-FedAvg"
PAPER = (
    "Fallah, Mokhtari and Ozdaglar 2020, Personalized federated learning: a meta-learning "
    "approach, algorithm 1 and appendix G"
)
VARIANTS = {
    "exact": "Algorithm 1, with the Hessian.",
    "first-order": "Equation 112: without the Hessian.",
    "hessian-free": "Equations 118 and 119: differences of gradients instead of the Hessian.",
}
SYMBOLS = {
    "alpha": ("α", "Step size of the inner step, by which a client adapts."),
    "beta": ("β", "Step size of w."),
    "tau": ("τ", "Local steps in a round, of three batches each: D, D' and D''."),
    "delta": ("δ", "Step of the differences; used by the variant 'hessian-free' alone."),
}
QUANTITIES = {
    "w": "The server's model after the round.",
    "w_i": "What each client that took part sends: its model after its local steps.",
    "adapted": "Each client's model w - alpha grad f_i(w) on its batch of 'adapt'.",
}
READING = [
    "D is the batch of the inner step, D' of the outer gradient, D'' of the Hessian, taken at "
    "the w before the step.",
    "The mean is uniform. A client adapts on examples that 'adapt' names.",
]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1."""
    alpha, beta, delta = case.symbol("alpha", "beta", "delta")
    gradient, curvature = case.problem.gradient, case.problem.curvature
    w = case.start
    for batches in case.rounds:
        w_i = {}
        for i, steps in batches.items():
            mine = w
            for step in steps:
                inner, outer, second = step["D"], step["D'"], step["D''"]
                g = gradient(i, mine - alpha * gradient(i, mine, inner), outer)
                if case.variant == "exact":
                    correction = curvature(i, mine, second, g)
                elif case.variant == "hessian-free":
                    ahead = gradient(i, mine + delta * g, second)
                    correction = (ahead - gradient(i, mine - delta * g, second)) / (2 * delta)
                else:
                    correction = 0 * g
                mine = mine - beta * (g - alpha * correction)
            w_i[i] = mine
        w = case.mean(w_i)
        adapt = case.told["adapt"]
        adapted = {i: w - alpha * gradient(i, w, adapt[i]) for i in case.clients}
        yield {"w": w, "w_i": w_i, "adapted": adapted}
