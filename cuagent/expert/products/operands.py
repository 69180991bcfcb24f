"""Copy the operands of a product so that their elements along K are adjacent.

The tensor cores of sm_90 read TF32 operands from shared memory along K only. Triton's three TF32
products reached 81 TFLOP/s with such operands on an H200, 55 with a row-major right operand, and
cuBLAS 51 in float32. A copy moves each element once, a product reads it many times.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides
from cuagent.expert.products.match import SPLIT_CAPABILITIES, batch_of
from cuagent.expert.rewrites import PREPARATIONS
from cuagent.expert.streaming.nest import NestError, storage

TRANSPOSED = "{0}.t().contiguous()"
BATCH_TRANSPOSED = "{0}.mT.contiguous()"
COPIED = "{0}.contiguous()"
PREPARATIONS |= {TRANSPOSED, BATCH_TRANSPOSED}
CALLS = ("torch.matmul({0}, {1})", "torch.mm({0}, {1})", "torch.bmm({0}, {1})")
LEAST_REUSE = 256
"""Least number of products that read an element, from which its copy costs little."""


def copy_operands(graph: Graph, target: Target) -> Graph:
    """Turn `matmul(a, b)` of a matrix b into a linear layer with the transpose of b."""
    if target.capability not in SPLIT_CAPABILITIES or target.tf32:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _with_copies(graph, node) if _gains(graph, node) else [node]
    return replace(graph, nodes=tuple(nodes))


def _gains(graph: Graph, node: Node) -> bool:
    if node.kind is not Kind.LIBRARY or node.op not in CALLS or node.dtype != "float32":
        return False
    left, right = (graph.node(str(arg)) for arg in node.args)
    rows = math.prod(left.shape[:-1])
    if left.dtype != "float32" or right.dtype != "float32" or len(left.shape) < 2:
        return False
    if len(right.shape) == 2:
        return min(rows, right.shape[1]) >= LEAST_REUSE
    return batch_of(graph, node) > 0 and min(left.shape[-2], right.shape[-1]) >= LEAST_REUSE


def _with_copies(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes of a product whose operands have adjacent elements along K."""
    left, right = (graph.node(str(arg)) for arg in node.args)
    if len(right.shape) == 2:
        return _linear(graph, node)
    nodes, names = [], [left.name, right.name]
    if _stride(graph, left, -1) != 1:
        names[0] = f"{node.name}_left"
        nodes.append(_copy(names[0], COPIED, left, left.shape, node))
    if _stride(graph, right, -2) != 1:
        copied = (*right.shape[:-2], right.shape[-1], right.shape[-2])
        copy = _copy(f"{node.name}_right", BATCH_TRANSPOSED, right, copied, node)
        steps = contiguous_strides(copied)
        names[1] = f"{node.name}_view"
        view = Node(names[1], Kind.STRIDED, "{0}.mT", (copy.name,), right.shape, right.dtype)
        swapped = (*steps[:-2], steps[-1], steps[-2])
        nodes += [copy, replace(view, strides=swapped, origin=node.origin)]
    return [*nodes, replace(node, args=tuple(names))]


def _stride(graph: Graph, node: Node, dimension: int) -> int:
    """Return the distance of elements along a dimension; 0 if it is unknown."""
    try:
        return storage(graph, node)[1][dimension]
    except NestError:
        return 0


def as_reductions(graph: Graph, target: Target, keep: frozenset[str]) -> Graph:
    """Turn products with a vector into sums of products over rows, which memory bounds."""
    if target.device != "cuda":
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        found = None if node.origin in keep else _reduction(graph, node)
        nodes += [node] if found is None else found
    return replace(graph, nodes=tuple(nodes))


def _reduction(graph: Graph, node: Node) -> list[Node] | None:
    linear = node.op.startswith("F.linear(")
    if node.kind is not Kind.LIBRARY or not (linear or node.op in CALLS) or not node.contiguous:
        return None
    left, right, *bias = (graph.node(str(arg)) for arg in node.args)
    depth, columns = left.shape[-1], node.shape[-1]
    rows = math.prod(left.shape[:-1])
    if len(right.shape) != 2 or len(left.shape) < 2 or right.kind in (Kind.STRIDED, Kind.GATHER):
        return None
    if columns == 1:
        matrix, vector, shape = left, right, left.shape
    elif linear and rows == 1 and left.kind not in (Kind.STRIDED, Kind.GATHER):
        matrix, vector, shape = right, left, right.shape
    else:
        return None
    names = {k: f"{node.name}_{k}" for k in ("vector", "products", "sum", "biased")}
    common = {"origin": node.origin}
    made = [
        Node(names["vector"], Kind.VIEW, "view", (vector.name,), (depth,), vector.dtype, **common),
        Node(
            names["products"], Kind.POINTWISE, "mul", (matrix.name, names["vector"]), shape,
            **common,
        ),
    ]  # fmt: skip
    total = Node(
        names["sum"], Kind.REDUCE, "sum", (names["products"],), shape[:-1],
        dims=(len(shape) - 1,), **common,
    )  # fmt: skip
    last = total
    made.append(total)
    if bias:
        args = (total.name, bias[0].name)
        last = Node(names["biased"], Kind.POINTWISE, "add", args, total.shape, **common)
        made.append(last)
    made[-1] = replace(last, dtype=node.dtype)
    made.append(Node(node.name, Kind.VIEW, "view", (last.name,), node.shape, node.dtype, **common))
    return made


def _linear(graph: Graph, node: Node) -> list[Node]:
    left, right = (graph.node(str(arg)) for arg in node.args)
    added, left_name = [], left.name
    if left.kind is Kind.STRIDED and left.strides[-1] != 1:
        left_name = f"{node.name}_left"
        added.append(_copy(left_name, COPIED, left, left.shape, node))
    right_name = f"{node.name}_right"
    added.append(_copy(right_name, TRANSPOSED, right, right.shape[::-1], node))
    linear = replace(node, op="F.linear({0}, {1})", args=(left_name, right_name))
    return [*added, linear]


def _copy(name: str, call: str, source: Node, shape: tuple[int, ...], node: Node) -> Node:
    return Node(name, Kind.LIBRARY, call, (source.name,), shape, source.dtype, origin=node.origin)
