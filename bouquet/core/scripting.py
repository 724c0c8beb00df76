"""Recorded steps as one TorchScript function, which runs them all without Python.

Python takes a few microseconds for an operation, as long as a small one itself, and only one thread
has it at a time: two nodes of a simulation would wait for each other. TorchScript needs no compiler
and calls the same operations.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

# Of the number of steps, the axis that they are along in batches, step sizes, moving
# tensors (which it writes to), held tensors, and batches.
Take = Callable[[int, int, list[float], list[Tensor], list[Tensor], list[Tensor]], None]


def looped(step: Callable[..., Any], project: Callable[..., Any] | None) -> Take:
    """Steps taken one by one in Python."""

    def take(
        count: int,
        axis: int,
        rates: list[float],
        moving: list[Tensor],
        held: list[Tensor],
        batches: list[Tensor],
    ) -> None:
        for place in range(count):
            step(*rates, *moving, *held, *(batch.select(axis, place) for batch in batches))
            if project is not None:
                project(*moving, *held)

    return take


class Recording(NamedTuple):
    """A step's graph, and its projection's, as :mod:`bouquet.core.graph_passes` makes them."""

    step: GraphModule
    project: GraphModule | None


def scripted(recordings: Mapping[int, Recording], sizes: tuple[int, int, int, int]) -> Take:
    """Steps taken by one call.

    Parameters
    ----------
    recordings : mapping of int to Recording
        The same step for so many clients. Of two, what differs must be a multiple of the clients'
        number, and then the function serves any number of them.
    sizes : tuple of int
        How many rates, moving tensors, held tensors and tensors of a batch there are.

    Raises
    ------
    RuntimeError
        If TorchScript cannot say it, or the recordings differ otherwise.
    """
    rates, moving, held, batch = sizes
    steps = {count: one.step for count, one in recordings.items()}
    projections = {count: one.project for count, one in recordings.items() if one.project}
    own = [f"moving[{n}]" for n in range(moving)] + [f"held[{n}]" for n in range(held)]
    first = next(iter(steps.values()))
    places = [node for node in first.graph.nodes if node.op == "placeholder"]
    used = [bool(node.users) for node in places[rates + moving + held :]]
    words = [f"rates[{n}]" for n in range(rates)] + own
    words += [f"batches[{n}]" + ".select(axis, i)" * used[n] for n in range(batch)]
    constants: list[Tensor] = []
    source = _function("step", steps, rates, constants)
    calls = [f"step({', '.join([*words, 'clients, constants'])})"]
    if projections:
        source += _function("project", projections, 0, constants)
        calls.append(f"project({', '.join([*own, 'clients, constants'])})")
    source += (
        "def take(count: int, axis: int, rates: List[float], moving: List[Tensor], "
        "held: List[Tensor], batches: List[Tensor], constants: List[Tensor]):\n"
        "    clients = moving[0].size(0) if moving[0].dim() else 1\n"
        "    for i in range(count):\n" + "".join(f"        {call}\n" for call in calls)
    )
    run = torch.jit.CompilationUnit(source).take

    def take(*words: Any) -> None:
        # As it stands: what TorchScript would optimize could round differently.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            run(*words, constants)

    return take


def _function(
    name: str, modules: Mapping[int, GraphModule], rates: int, constants: list[Tensor]
) -> str:
    """The source of a recording; tensors that it holds are added to the constants."""
    words: list[str] = []
    lines: list[str] = []
    graphs = [list(module.graph.nodes) for module in modules.values()]
    if len({len(nodes) for nodes in graphs}) > 1:
        raise RuntimeError("another number of clients takes other operations")
    for nodes in zip(*graphs, strict=True):
        node = nodes[0]
        if len({(one.op, one.target, one.name) for one in nodes}) > 1:
            raise RuntimeError("another number of clients takes other operations")
        match node.op:
            case "placeholder":
                words.append(f"{node.name}: {'float' if len(words) < rates else 'Tensor'}")
            case "get_attr":
                held = [getattr(one, node.target) for one in modules.values()]
                if not all(one.equal(held[0]) for one in held):
                    raise RuntimeError("a number depends on how many clients there are")
                lines.append(f"{node.name} = constants[{len(constants)}]")
                constants.append(held[0])
            case "call_function":
                lines.append(f"{node.name} = {_call(dict(zip(modules, nodes, strict=True)))}")
    words.append("clients: int, constants: List[Tensor]")
    body = "".join(f"    {line}\n" for line in [*lines, "return None"])
    return f"def {name}({', '.join(words)}):\n{body}"


def _call(nodes: Mapping[int, Node]) -> str:
    node = next(iter(nodes.values()))
    given = [
        _word({count: one.args[place] for count, one in nodes.items()})
        for place in range(len(node.args))
    ]
    if node.target is operator.getitem:  # one of several results
        return f"{given[0]}[{given[1]}]"
    if node.target is operator.neg:
        return f"-{given[0]}"
    assert isinstance(node.target, torch._ops.OpOverload)
    given += [
        f"{key}={_word({count: one.kwargs[key] for count, one in nodes.items()})}"
        for key in node.kwargs
    ]
    return f"torch.ops.{node.target._schema.name.replace('::', '.')}({', '.join(given)})"


def _word(values: Mapping[int, Any]) -> str:
    """An argument as TorchScript writes it, given what it is for so many clients."""
    value = next(iter(values.values()))
    match value:
        case Node():
            if any(getattr(one, "name", None) != value.name for one in values.values()):
                raise RuntimeError("another number of clients takes other operands")
            return str(value.name)
        case list() | tuple():
            parts = zip(*values.values(), strict=True)
            words = [_word(dict(zip(values, part, strict=True))) for part in parts]
            return f"[{', '.join(words)}]" if words else "torch.jit.annotate(List[int], [])"
        case torch.device():
            return f'torch.device("{value}")'
        case float() if not math.isfinite(value):
            return f'float("{value}")'
    if all(one == value for one in values.values()):
        return str(value)
    each = {one / count for count, one in values.items()}
    if len(each) > 1 or not (times := each.pop()).is_integer():
        raise RuntimeError("a step depends on the number of clients in a way of its own")
    return f"{int(times)} * clients"
