"""Our own schemes on the conformance vectors: an adapter such as any library can have.

A file of vectors has a problem, who takes part in each round and on which examples; here the
schemes' own methods play those rounds, and their states are told in the papers' symbols.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bouquet.core.descent import Sgd
from bouquet.core.errors import BadInput
from bouquet.core.round import play, row_of
from bouquet.core.scheme import AnyScheme, Federation, Member, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Tree
from bouquet.strategies.afl import AFL
from bouquet.strategies.apfl import APFL
from bouquet.strategies.ditto import Ditto
from bouquet.strategies.fedalt import FedAlt
from bouquet.strategies.fedsim import FedSim
from bouquet.strategies.fedu import FedU
from bouquet.strategies.perfedavg import PerFedAvg
from bouquet.strategies.pfedme import PFedMe
from bouquet.strategies.plsgd import PLSGD
from bouquet.strategies.scaffold import Scaffold

Vector = Mapping[str, Any]
Symbols = Mapping[str, Any]


class After(NamedTuple):
    """What there is after a round: at the server, on the devices, and what was sent."""

    server: Any
    kept: Mapping[str, Any]
    sent: Mapping[str, Any]
    models: Mapping[str, Tree]  # the clients' personalized models


class Ours(NamedTuple):
    """One of our schemes in a paper's symbols.

    Parameters
    ----------
    scheme : callable
        The scheme with its keys, of the symbols' values and the variant.
    lr, steps : str
        The symbols that are the step size and the number of local steps.
    told : callable
        Our states under the paper's names.
    """

    scheme: Callable[[Symbols, str], AnyScheme]
    lr: str
    steps: str
    told: Callable[[After], dict[str, Any]]


def _each(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One field of every client's record."""
    return {client: getattr(one, name) for client, one in values.items()}


def _parts(a: After) -> dict[str, Any]:
    """What partial personalization has, however its steps are ordered."""
    return {"u": a.server.w, "u_i": _each(a.sent, "w"), "v": _each(a.kept, "v")}


SCHEMES: dict[str, Ours] = {
    "apfl": Ours(
        lambda s, variant: APFL(
            alpha=s["alpha"], adaptive=variant == "adaptive", alpha_lr=s["eta_alpha"]
        ),
        "eta",
        "tau",
        lambda a: {
            "w": a.server.w,
            "w_i": _each(a.sent, "w"),
            "v": _each(a.kept, "v"),
            "alpha": _each(a.kept, "alpha"),
            "v_bar": a.models,
        },
    ),
    "fedu": Ours(
        lambda s, variant: FedU(eta=s["eta"], neighbours=variant),
        "mu",
        "R",
        lambda a: {"w_kR": _each(a.sent, "w"), "w_k": a.models},
    ),
    "fedsim": Ours(
        lambda s, _: FedSim(personal_lr=s["gamma_v"]),
        "gamma_u",
        "tau",
        _parts,
    ),
    "fedalt": Ours(
        lambda s, _: FedAlt(personal_lr=s["gamma_v"], personal_steps=s["tau_v"]),
        "gamma_u",
        "tau_u",
        _parts,
    ),
    "plsgd": Ours(
        lambda s, _: PLSGD(alpha=s["alpha"], beta=s["beta"]),
        "eta",
        "K",
        lambda a: {
            "w": a.server.w,
            "w_m": _each(a.sent, "w"),
            "theta": _each(a.kept, "theta"),
            "phi": a.models,
        },
    ),
    "perfedavg": Ours(
        lambda s, variant: PerFedAvg(inner_lr=s["alpha"], mode=variant, delta=s["delta"]),
        "beta",
        "tau",
        lambda a: {"w": a.server.w, "w_i": _each(a.sent, "w"), "adapted": a.models},
    ),
    "ditto": Ours(
        lambda s, _: Ditto(strength=s["lambda"], personal_steps=s["s"]),
        "eta",
        "tau",
        lambda a: {"w": a.server.w, "w_k": _each(a.sent, "w"), "v": _each(a.kept, "v")},
    ),
    "pfedme": Ours(
        lambda s, _: PFedMe(
            strength=s["lambda"], inner_steps=s["K"], inner_lr=s["inner_eta"], beta=s["beta"]
        ),
        "eta",
        "R",
        lambda a: {
            "w": a.server.w,
            "w_i": _each(a.sent, "w"),
            "theta": {i: one.theta for i, one in a.kept.items() if one.begun},
        },
    ),
    "scaffold": Ours(
        lambda s, _: Scaffold(server_lr=s["eta_g"]),
        "eta_l",
        "K",
        lambda a: {
            "x": a.server.w,
            "c": a.server.c,
            "delta_y": _each(a.sent, "w"),
            "c_i": _each(a.kept, "c"),
        },
    ),
    "afl": Ours(
        lambda s, _: AFL(lambda_lr=s["gamma_lambda"]).assembled(),
        "gamma_w",
        "tau",
        lambda a: {
            "w": a.server.w,
            "w_i": _each(a.sent, "w"),
            "L": _each(a.sent, "loss"),
            "lambda": a.server.mixture,
        },
    ),
}


def output(vector: Vector) -> dict[str, Any]:
    """What our scheme makes of a file of vectors, in the form that the checker takes.

    Parameters
    ----------
    vector : mapping
        The file, as JSON has it; what it expects is not looked at.
    """
    if vector["scheme"] not in SCHEMES:
        raise BadInput(f"There is no scheme here for vectors of {vector['scheme']!r}.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on models so small, threads would only wait for each other
    try:
        return {"name": vector["name"], "iterates": list(_iterates(vector))}
    finally:
        torch.set_num_threads(threads)


def _iterates(vector: Vector) -> Iterator[dict[str, Any]]:
    ours = SCHEMES[vector["scheme"]]
    symbols = {name: one["value"] for name, one in vector["symbols"].items()}
    scheme = ours.scheme(symbols, vector["variant"])
    lr, steps = symbols[ours.lr], symbols[ours.steps]
    task = _task_of(vector)
    members = {client: Member(1, weight) for client, weight in vector["weights"].items()}
    federation = Federation(members, lr=lr, steps=steps)
    server = scheme.welcome(scheme.init_server(task), federation)
    if "a" in symbols:
        server = server._replace(graph=_doubles(symbols["a"]))
    kept = {client: scheme.init_personal(task, 1) for client in members}
    for number, round_ in enumerate(vector["rounds"], start=1):
        works = {
            client: Work(task, Sgd(lr), _batches(vector, client, own), steps)
            for client, own in round_["batches"].items()
        }
        sent = {
            client: scheme.local_update(work, _received(scheme, server, client), kept[client])[0]
            for client, work in works.items()
        }
        server, kept = play(scheme, server, federation, works, kept, number)
        models = {}
        for client, own in kept.items():
            adapt = [vector["adapt"][client]] if "adapt" in vector else []
            work = Work(task, Sgd(lr), _batches(vector, client, adapt))
            models[client] = scheme.predictor(work, _received(scheme, server, client), own)
        yield _plain(ours.told(After(server, kept, sent, models)))


class _Point(nn.Module):
    """The model of a quadratic problem: what it says is its point, whatever the example."""

    def __init__(self, initial: Tree) -> None:
        super().__init__()
        self._names = list(initial)
        for name, value in initial.items():
            self.register_parameter(name, nn.Parameter(value.clone()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([getattr(self, name) for name in self._names]).expand(len(x), -1)


def _network(initial: Tree) -> nn.Module:
    """Linear layers by the file's names, tanh between them."""
    layers = [name.removesuffix(".weight") for name in initial if name.endswith(".weight")]
    parts: dict[str, nn.Module] = {}
    for layer in layers:
        parts |= {f"tanh-{layer}": nn.Tanh()} if parts else {}
        width, inputs = initial[f"{layer}.weight"].shape
        parts[layer] = nn.Linear(inputs, width, dtype=torch.float64)
    return nn.Sequential(OrderedDict(parts))


def _task_of(vector: Vector) -> Task:
    """A file's model and loss."""
    initial = {name: _doubles(value) for name, value in vector["initial"].items()}
    personal = frozenset(vector.get("personal", ()))
    if vector["problem"] == "quadratic":
        return Task(_Point(initial), initial, 0, personal)
    return Task(_network(initial), initial, len(initial["output.bias"]), personal)


def _doubles(value: Any) -> Tensor:
    """Numbers of a file."""
    return torch.tensor(value, dtype=torch.float64)


def _data(vector: Vector, client: str) -> tuple[Tensor, Tensor]:
    """A client's inputs and targets; of a quadratic problem, curvatures and optima."""
    own = vector["clients"][client]
    if vector["problem"] == "quadratic":
        return _doubles(own["A"]), _doubles(own["c"])
    return _doubles(own["x"]), torch.tensor(own["y"])


def _batches(vector: Vector, client: str, own: Any) -> list[Batch]:
    """A client's batches in the order our schemes take them.

    Where a file has batches for two halves of a round, ours take the first of one list for each.
    """
    places: Sequence[Sequence[int]]
    if isinstance(own, dict):
        places = max(own.values(), key=len)
        if any(list(one) != list(places[: len(one)]) for one in own.values()):
            raise BadInput(
                "Here both halves of a round see the same batches; these vectors differ."
            )
    elif own and isinstance(own[0], dict):
        places = [batch for step in own for batch in step.values()]
    else:
        places = own
    x, y = _data(vector, client)
    one = torch.ones((), dtype=torch.float64)
    return [Batch(x[list(at)], y[list(at)], one.expand(len(at)) / len(at), one) for at in places]


def _received(scheme: AnyScheme, server: Any, client: str) -> Any:
    return row_of(scheme, scheme.downlink(server, [client]), 0)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value.detach().tolist()
