"""The cases: which scheme on which problem, with whom in each round and on which examples.

Numbers are drawn here once, and rounded to a few digits that JSON keeps exactly. Whoever reads
the vectors draws nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

CLIENTS = {"a": 3, "b": 5, "c": 4, "d": 2}  # unequal, so that weights are not met by luck
SAMPLED = (("a", "c"), ("b", "c", "d"), ("a", "b"), ("b", "c"))
ALL = (("a", "b", "c", "d"),) * 3
PARTS = {"fedsim": ("v",), "fedalt": ("v",)}


class Plan(NamedTuple):
    """A case in short.

    Parameters
    ----------
    scheme : str
        A file of ``reference``.
    problem : str
        ``quadratic``, ``softmax`` or ``mlp``.
    rounds : sequence
        Who takes part.
    symbols : mapping
        Values of the paper's symbols.
    variant : str
        One of the scheme's variants.
    weights : str
        ``uniform``, or ``examples`` for means weighted by the numbers of examples.
    note : str
        The end of the file's name.
    """

    scheme: str
    problem: str
    rounds: Sequence[Sequence[str]]
    symbols: Mapping[str, Any]
    variant: str = ""
    weights: str = "uniform"
    note: str = ""

    @property
    def name(self) -> str:
        """The file's name."""
        sampled = "sampled" if self.rounds == SAMPLED else "all"
        words = (self.scheme, self.problem, sampled, self.note)
        return "-".join(word for word in words if word)


GRAPH = [[0.0, 1.0, 0.5, 0.0], [1.0, 0.0, 0.0, 0.25], [0.5, 0.0, 0.0, 1.0], [0.0, 0.25, 1.0, 0.0]]
APFL = {"eta": 0.2, "tau": 3, "alpha": 0.4, "eta_alpha": 0.5}
FEDU = {"mu": 0.1, "R": 3, "eta": 0.6, "a": GRAPH}
FEDSIM = {"gamma_u": 0.2, "gamma_v": 0.3, "tau": 3}
FEDALT = {"gamma_u": 0.2, "gamma_v": 0.3, "tau_v": 3, "tau_u": 2}
PLSGD = {"eta": 0.15, "K": 3, "alpha": 0.7, "beta": 0.8}
META = {"alpha": 0.1, "beta": 0.2, "tau": 2, "delta": 0.05}
DITTO = {"eta": 0.2, "lambda": 0.5, "tau": 2, "s": 3}
PFEDME = {"lambda": 2.0, "eta": 0.1, "R": 2, "K": 3, "inner_eta": 0.15, "beta": 0.8}
SCAFFOLD = {"eta_l": 0.15, "eta_g": 0.9, "K": 3}
AFL = {"gamma_w": 0.2, "gamma_lambda": 0.05, "tau": 2}
EVERY: dict[str, Mapping[str, Any]] = {
    "apfl": APFL,
    "fedu": FEDU,
    "fedsim": FEDSIM,
    "fedalt": FEDALT,
    "plsgd": PLSGD,
    "perfedavg": META,
    "ditto": DITTO,
    "pfedme": PFEDME,
    "scaffold": SCAFFOLD,
    "afl": AFL,
}


def plans() -> Iterator[Plan]:
    """Every scheme on quadratics with everyone, and on a network with some of them; then more."""
    variants = {"apfl": "adaptive", "fedu": "all", "perfedavg": "exact"}
    for scheme, symbols in EVERY.items():
        for kind, rounds in (("quadratic", ALL), ("mlp", SAMPLED)):
            yield Plan(scheme, kind, rounds, symbols, variants.get(scheme, ""))
    # A single step with fixed alpha can be followed by hand.
    yield Plan("apfl", "quadratic", ALL, APFL | {"tau": 1}, "fixed", note="fixed")
    # Where models are linear, mixing outputs is mixing models: only the mlp tells them apart.
    yield Plan("apfl", "softmax", SAMPLED, APFL, "adaptive")
    yield Plan("apfl", "softmax", ALL, APFL, "fixed", note="fixed")
    yield Plan("apfl", "mlp", ALL, APFL, "fixed", note="fixed")
    # So large a step that alpha must be kept in [0, 1].
    yield Plan("apfl", "quadratic", SAMPLED, APFL | {"eta_alpha": 3.0}, "adaptive", note="clipped")
    yield Plan("fedu", "quadratic", SAMPLED, FEDU, "all")
    yield Plan("fedu", "quadratic", SAMPLED, FEDU, "sampled", note="neighbours")
    for scheme in ("fedsim", "fedalt"):
        yield Plan(scheme, "mlp", SAMPLED, EVERY[scheme], weights="examples", note="weighted")
    for variant in ("first-order", "hessian-free"):
        yield Plan("perfedavg", "quadratic", ALL, META, variant, note=variant)
        yield Plan("perfedavg", "mlp", SAMPLED, META, variant, note=variant)
    yield Plan("plsgd", "softmax", SAMPLED, PLSGD)
    # The paper to the letter: one step, everyone.
    yield Plan("afl", "quadratic", ALL, AFL | {"tau": 1}, note="one-step")
    # So large a step that a client's weight becomes 0.
    yield Plan("afl", "quadratic", ALL, AFL | {"gamma_lambda": 0.15}, note="corner")


def told(plan: Plan) -> dict[str, Any]:
    """All that a file says of a case but for words and for what is expected."""
    rng = np.random.default_rng(sum(plan.problem.encode()))  # one problem for all schemes
    model = _model(plan, rng)
    clients = {i: _examples(plan.problem, count, rng) for i, count in CLIENTS.items()}
    batches = _Batches(plan, np.random.default_rng(len(plan.rounds)))
    case: dict[str, Any] = {
        "problem": plan.problem,
        "initial": model,
        "clients": clients,
        "weights": {i: n if plan.weights == "examples" else 1 for i, n in CLIENTS.items()},
        "rounds": [
            {"round": number, "sampled": list(who), "batches": {i: batches.of(i) for i in who}}
            for number, who in enumerate(plan.rounds, start=1)
        ],
    }
    if plan.scheme in PARTS:
        network = ["output.weight", "output.bias"]
        case["personal"] = ["v"] if plan.problem == "quadratic" else network
    if plan.scheme == "perfedavg":
        case["adapt"] = {i: [0, 1] for i in CLIENTS}
    return case


def _model(plan: Plan, rng: np.random.Generator) -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {"output.weight": (3, 2), "output.bias": (3,)}
    if plan.problem == "mlp":
        hidden = {"hidden.weight": (3, 2), "hidden.bias": (3,)}
        shapes = {**hidden, "output.weight": (3, 3), "output.bias": (3,)}
    if plan.problem == "quadratic":
        shapes = {"u": (2,), "v": (1,)} if plan.scheme in PARTS else {"x": (3,)}
    return {name: rng.normal(0, 0.7, shape).round(3).tolist() for name, shape in shapes.items()}


def _examples(problem: str, count: int, rng: np.random.Generator) -> dict[str, Any]:
    if problem == "quadratic":
        root = rng.normal(0, 1, (count, 3, 3))
        curvature = (root @ root.transpose(0, 2, 1) / 3 + 0.5 * np.eye(3)).round(3)
        return {"A": curvature.tolist(), "c": rng.normal(0, 1, (count, 3)).round(3).tolist()}
    x = rng.normal(0, 1, (count, 2)).round(3)
    return {"x": x.tolist(), "y": rng.integers(0, 3, count).tolist()}


class _Batches:
    """Which examples each step is taken on."""

    def __init__(self, plan: Plan, rng: np.random.Generator) -> None:
        self._plan, self._rng = plan, rng

    def of(self, client: str) -> Any:
        """A client's batches in a round, in the form its scheme has."""
        symbols, scheme = self._plan.symbols, self._plan.scheme
        if scheme == "fedalt":
            return self._two(client, v=symbols["tau_v"], u=symbols["tau_u"])
        if scheme == "ditto":
            return self._two(client, w=symbols["tau"], v=symbols["s"])
        steps = symbols[next(name for name in ("tau", "R", "K") if name in symbols)]
        if scheme == "perfedavg":
            return [{name: self._one(client) for name in ("D", "D'", "D''")} for _ in range(steps)]
        return [self._one(client) for _ in range(steps)]

    def _two(self, client: str, **steps: int) -> dict[str, list[list[int]]]:
        """Both halves see the same examples; the shorter has the first batches of the longer."""
        most = [self._one(client) for _ in range(max(steps.values()))]
        return {name: most[:count] for name, count in steps.items()}

    def _one(self, client: str) -> list[int]:
        return self._rng.choice(CLIENTS[client], 2, replace=False).tolist()  # type: ignore[no-any-return]
