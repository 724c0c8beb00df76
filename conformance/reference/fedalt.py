"""FedAlt: Pillutla et al. (2022), algorithm 1 with LocalAlt (algorithm 3)."""

from collections.abc import Iterator

from .case import Case, Iterate
from .fedsim import QUANTITIES as QUANTITIES
from .fedsim import shown

NAME = "FedAlt"
PAPER = "Pillutla et al. 2022, Federated learning with partial model personalization, algs. 1 and 3"
VARIANTS = {"": ""}
SYMBOLS = {
    "gamma_u": ("γ_u", "Step size of the shared part u_i."),
    "gamma_v": ("γ_v", "Step size of the personal part v_i."),
    "tau_v": ("τ_v", "Steps on v_i, first, on the batches 'v'."),
    "tau_u": ("τ_u", "Steps on u_i, then, on the batches 'u'."),
}
READING = [
    "v_i takes its steps with u as received; then u_i takes its steps with the new v_i.",
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
            for batch in steps["v"]:  # algorithm 3, line 3
                v[i] = v[i] - gamma_v * is_v * case.problem.gradient(i, u + v[i], batch)
            u_i[i] = u
            for batch in steps["u"]:  # line 6
                slope = case.problem.gradient(i, u_i[i] + v[i], batch)
                u_i[i] = u_i[i] - gamma_u * is_u * slope
        u = case.mean(u_i)
        yield shown(case, u, u_i, v)
