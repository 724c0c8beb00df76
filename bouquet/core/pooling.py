"""Recorded steps that pool before they cut off at 0, and the other way round on the way back.

The largest of some numbers cut off at 0 is the largest of them, cut off at 0: to the last bit, and
so are the slopes, for what was cut off passes none on. After pooling there is a quarter to cut off.
"""

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


class _Pooled(NamedTuple):
    """A relu that is pooled, and what comes of both on the way there and back."""

    relu: Node
    pool: Node
    largest: Node
    back: Node
    cut: Node


def pool_before_relu(graph: Graph) -> None:
    """Change every relu that nobody looks at but its pooling and the two's slopes."""
    for node in list(graph.nodes):
        if node.target is aten.relu.default:
            found = _pooled(node)
            if found is not None:
                _swap(graph, found)


def _pooled(relu: Node) -> _Pooled | None:
    by_kind = {node.target: node for node in relu.users}
    pool = by_kind.get(aten.max_pool2d_with_indices.default)
    back = by_kind.get(aten.max_pool2d_with_indices_backward.default)
    cut = by_kind.get(aten.threshold_backward.default)
    if len(relu.users) != 3 or pool is None or back is None or cut is None:
        return None
    parts: dict[Any, Node] = {one.args[1]: one for one in pool.users}
    kept = [one.target is operator.getitem for one in pool.users]
    fits = (
        all(kept) and set(parts) == {0, 1} and len(kept) == 2
        and back.args[1] is relu and cut.args == (back, relu, 0) and list(back.users) == [cut]
        and list(parts[1].users) == [back]
    )  # fmt: skip
    return _Pooled(relu, pool, parts[0], back, cut) if fits else None


def _swap(graph: Graph, found: _Pooled) -> None:
    relu, pool, largest, back, cut = found
    whole: Any = relu.args[0]
    pool.replace_input_with(relu, whole)
    with graph.inserting_after(largest):
        less = graph.call_function(aten.relu.default, (largest,))
    less.meta = dict(largest.meta)
    largest.replace_all_uses_with(less, delete_user_cb=lambda user: user is not less)
    slope: Any = back.args[0]
    with graph.inserting_before(back):
        if not _laid_out_alike(slope, whole):
            # Or pooling's slopes are turned around twice, and in full size.
            slope = graph.call_function(
                aten.clone.default, (slope,), {"memory_format": torch.channels_last}
            )
            slope.meta = dict(largest.meta)
        passed = graph.call_function(aten.threshold_backward.default, (slope, less, 0))
        passed.meta = dict(largest.meta)
    back.args = (passed, whole, *back.args[2:])
    cut.replace_all_uses_with(back)
    graph.erase_node(cut)
    graph.erase_node(relu)


def _laid_out_alike(slope: Node, whole: Node) -> bool:
    """Whether a slope has its channels where the pooled numbers do."""
    last = whole.meta["val"].is_contiguous(memory_format=torch.channels_last)
    return not last or slope.meta["val"].is_contiguous(memory_format=torch.channels_last)
