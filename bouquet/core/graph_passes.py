"""Making a recorded gradient step shorter, and its update part of it."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from bouquet.core.lifting import NotReplayable
from bouquet.core.pooling import pool_before_relu

aten = torch.ops.aten
_SAME_IF_SAME_SHAPE = {
    aten.expand.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}


def mutates(module: GraphModule) -> bool:
    """Whether a recording writes to anything."""
    return any(_is_mutable(node) for node in module.graph.nodes)


def updating(
    module: GraphModule, moving: int, rates: int, constants: Sequence[Tensor] = ()
) -> GraphModule:
    """A step that moves its first inputs against the slopes that a recording computes.

    Parameters
    ----------
    module : GraphModule
        Its first inputs move; its outputs are their slopes, or new values of those without a step
        size.
    moving : int
        How many there are.
    rates : int
        How many step sizes come before all other inputs: one for each of the first that move.
    constants : sequence of Tensor
        Tensors that never change, which the recording may refer to.

    Notes
    -----
    Where a slope is a matrix product, the product is added to the weights as it is formed, which
    spares writing and reading the slope. It rounds differently from the same slope with a term 0
    added, so schemes that are one at degenerate values would no longer be so to the last bit;
    in double precision, which is for such comparisons, it is left.
    """
    graph = module.graph
    _check(module, constants)
    _shorten(graph)
    pool_before_relu(graph)
    places = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(places[0]):
        sizes = [graph.placeholder(f"rate{n}") for n in range(rates)]
    slopes = [_apart(graph, output, slope, places[:moving]) for slope in output.args[0]]
    with graph.inserting_before(output):
        for place, value in zip(places[rates:moving], slopes[rates:], strict=True):
            graph.call_function(aten.copy_.default, (place, value))
        for place, slope, size in zip(places, slopes, sizes, strict=False):
            factors = _factors(place, slope, places[:moving])
            if factors is None:
                graph.call_function(aten.sub_.Tensor, (place, slope), {"alpha": size})
            else:
                adding, pair = factors
                down = graph.call_function(operator.neg, (size,))
                graph.call_function(adding, (place, *pair), {"beta": 1, "alpha": down})
    output.args = (None,)
    return _finished(module)


def projecting(module: GraphModule, moving: int) -> GraphModule:
    """A projection that writes to its first inputs what a recording computes of them."""
    graph = module.graph
    _check(module)
    _shorten(graph)
    places = [node for node in graph.nodes if node.op == "placeholder"][:moving]
    output = next(node for node in graph.nodes if node.op == "output")
    moved = [
        (place, _apart(graph, output, end, places))
        for place, end in zip(places, output.args[0], strict=True)
        if end is not place
    ]
    with graph.inserting_before(output):
        for place, end in moved:
            graph.call_function(aten.copy_.default, (place, end))
    output.args = (None,)
    return _finished(module)


_ADDING = {aten.mm.default: aten.addmm_.default, aten.bmm.default: aten.baddbmm_.default}


def _factors(place: Node, slope: Node, moving: list[Node]) -> tuple[Any, Any] | None:
    """Where a slope is a matrix product: what adds it to the weights, and its factors."""
    if place.meta["val"].dtype != torch.float32 or not _alike(place, slope):
        return None
    slope = _scaled_before(slope)
    adding = _ADDING.get(slope.target)  # type: ignore[call-overload]
    # The only user is the output; and no factor may have moved before the product is formed.
    if adding is None or len(slope.users) > 1:
        return None
    if any(_root(factor) in moving for factor in slope.all_input_nodes):
        return None
    return adding, slope.args


def _scaled_before(slope: Node) -> Node:
    """A product times a number for each client: its first factor, which is smaller, times it."""
    if slope.target is not aten.mul.Tensor or len(slope.users) > 1:
        return slope
    pair: Any = slope.args
    for product, scale in (pair, pair[::-1]):
        if getattr(product, "target", None) not in _ADDING or len(product.users) > 1:
            continue
        if getattr(scale, "target", None) is aten.expand.default:
            scale = scale.args[0]
        if not isinstance(scale, Node) or not _typed(scale, product):
            continue
        # One number a client: [clients, 1, 1] for many, anything of one element for one.
        if product.target is aten.bmm.default:
            fits = _shape(scale) == (_shape(product)[0], 1, 1)
        else:
            fits = math.prod(_shape(scale)) == 1
        if not fits:
            continue
        graph, (first, second) = slope.graph, product.args
        with graph.inserting_before(slope):
            less = graph.call_function(aten.mul.Tensor, (first, scale))
            less.meta = dict(first.meta)
            formed = graph.call_function(product.target, (less, second))
            formed.meta = dict(product.meta)
        slope.replace_all_uses_with(formed)
        return formed
    return slope


def _check(module: GraphModule, constants: Sequence[Tensor] = ()) -> None:
    """Refuse what a replay would get wrong: chance, writing, tensors that nobody told us of."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            if any(getattr(module, node.target) is one for one in constants):
                continue
            # A number written in the code is copied; anything else is somebody's tensor.
            if any(user.target is not aten.lift_fresh_copy.default for user in node.users):
                raise NotReplayable("a step refers to a tensor that is hidden from it")
        elif _is_mutable(node):
            raise NotReplayable(f"a step writes to a tensor ({node.target})")
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotReplayable(f"a step draws at random ({node.target})")


def _is_mutable(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _finished(module: GraphModule) -> GraphModule:
    module.graph.eliminate_dead_code(
        lambda node: node.op in ("placeholder", "output") or _is_mutable(node)
    )
    module.recompile()
    return module


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _typed(one: Any, other: Any) -> bool:
    """Whether two are of one type; sums and products of mixed precision need not be."""
    return bool(one.meta["val"].dtype == other.meta["val"].dtype)


def _alike(one: Any, other: Any) -> bool:
    return _shape(one) == _shape(other) and _typed(one, other)


def _shorten(graph: Graph) -> None:
    """Remove what changes nothing or is computed twice; exact to the last bit."""
    graph.eliminate_dead_code()
    changed = True
    while changed:
        known: dict[tuple[Any, str, str], Node] = {}
        changed = False
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            same = _spared(node) or known.setdefault(
                (node.target, str(node.args), str(node.kwargs)), node
            )
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)
                changed = True
        changed = _join_biases(graph) or changed
        graph.eliminate_dead_code()


def _spared(node: Node) -> Node | None:
    """The node that a node equals, if it is one that changes nothing."""
    first: Any = node.args[0] if node.args else None
    if not isinstance(first, Node):
        return None
    if node.target is aten.detach.default:  # nobody differentiates a recording
        return first
    if node.target in _SAME_IF_SAME_SHAPE and _shape(node) == _shape(first):
        return first
    swap = _swap(node)
    if swap and _swap(first) == swap:
        return first.args[0]  # type: ignore[return-value]
    if node.target is aten.mul.Scalar and node.args[1] == 1:
        return first
    if node.target is aten.mul.Tensor:
        pair: Any = node.args
        for ones, other in (pair, pair[::-1]):
            if isinstance(other, Node) and getattr(ones, "target", None) is aten.ones_like.default:
                return other if _alike(other, node) else None
    return None


def _swap(node: Node) -> tuple[int, ...] | None:
    """The two axes that a transposition swaps."""
    if node.target is aten.t.default:
        return (0, 1)
    if node.target is aten.transpose.int:
        axes: Any = node.args[1:]
        return tuple(sorted(axis % len(_shape(node)) for axis in axes))
    return None


def _join_biases(graph: Graph) -> bool:
    """``a @ b + c`` in one pass over the result."""
    changed = False
    for node in list(graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs:
            continue
        pair: Any = node.args
        for product, bias in (pair, pair[::-1]):
            product, times = _times(product)
            alone = getattr(product, "target", None) is aten.bmm.default and len(product.users) == 1
            if alone and isinstance(bias, Node) and _alike(product, node) and _typed(bias, node):
                _replace(graph, node, aten.baddbmm.default, (bias, *product.args), times)
                changed = True
                break
    return changed


def _times(product: Any) -> tuple[Any, dict[str, float]]:
    """A product and the number it is multiplied by, in single precision: it rounds differently."""
    if getattr(product, "target", None) is not aten.mul.Tensor or len(product.users) > 1:
        return product, {}
    single = product.meta["val"].dtype == torch.float32
    for inner, number in (product.args, product.args[::-1]):
        if single and isinstance(inner, Node) and isinstance(number, (int, float)):
            return inner, {"alpha": number}
    return product, {}


def _replace(
    graph: Graph, node: Node, target: Any, args: tuple[Any, ...], words: dict[str, Any]
) -> None:
    with graph.inserting_before(node):
        new = graph.call_function(target, args, words)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _root(node: Node) -> Node:
    """The node whose memory a node looks at."""
    schema = getattr(node.target, "_schema", None)
    looks = schema is not None and any(one.alias_info is not None for one in schema.returns)
    return _root(node.args[0]) if looks and isinstance(node.args[0], Node) else node


def _apart(graph: Graph, output: Node, value: Any, moving: list[Node]) -> Node:
    """A result that does not change when what moves is written to."""
    if not isinstance(value, Node):
        raise NotReplayable("a step has no slope")
    if value not in moving and _root(value) not in moving:
        return value
    with graph.inserting_before(output):
        return graph.call_function(aten.clone.default, (value,))
