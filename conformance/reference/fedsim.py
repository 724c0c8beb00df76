"""FedSim: Pillutla et al. (2022), algorithm 1 with LocalSim (algorithm 2)."""

from collections.abc import Iterator, Mapping

from .case import Case, Iterate
from .problems import Vector

NAME = "FedSim"
PAPER = "Pillutla et al. 2022, Federated learning with partial model personalization, algs. 1 and 2"
VARIANTS = {"": ""}
SYMBOLS = {
    "gamma_u": ("γ_u", "Step size of the shared part u_i."),
    "gamma_v": ("γ_v", "Step size of the personal part v_i."),
    "tau": ("τ", "Local steps in a round, one batch each."),
}
QUANTITIES = {
    "u": "The server's shared part after the round.",
    "u_i": "What each client that took part sends: its u_i after its local steps.",
    "v": "Each client's personal part v_i.",
}
READING = [
    "Both parts move from the same point, on one batch (algorithm 2, lines 4 and 5).",
    "'personal' names the parameters that are v; the others are u. v_i starts as in 'initial'.",
    "The mean of u_i is by 'weights': all 1 is line 7 of algorithm 1, numbers of examples are the "
    "weights alpha_i of problem (3).",
]


def iterates(case: Case) -> Iterator[Iterate]:
    """Rounds of algorithm 1; the whole model is one vector whose entries are masked."""
    gamma_u, gamma_v = case.symbol("gamma_u", "gamma_v")
    is_u, is_v = case.mask(personal=False), case.mask(personal=True)
    u = case.start * is_u
    v = dict.fromkeys(case.clients, case.start * is_v)
    for batches in case.rounds:
        u_i = {}
        for i, steps in batches.items():
            mine = u
            for batch in steps:
                slope = case.problem.gradient(i, mine + v[i], batch)
                mine, v[i] = mine - gamma_u * is_u * slope, v[i] - gamma_v * is_v * slope
            u_i[i] = mine
        u = case.mean(u_i)
        yield shown(case, u, u_i, v)


def shown(case: Case, u: Vector, u_i: Mapping[str, Vector], v: Mapping[str, Vector]) -> Iterate:
    """The parts by their parameters' names."""
    return {
        "u": case.part(u, personal=False),
        "u_i": {i: case.part(x, personal=False) for i, x in u_i.items()},
        "v": {i: case.part(x, personal=True) for i, x in v.items()},
    }
