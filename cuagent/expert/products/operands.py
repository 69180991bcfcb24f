"""Prepare the operands of a product: copies with adjacent elements along K, and split weights.

The tensor cores of sm_90 read TF32 operands from shared memory along K only. Triton's three TF32
products reached 81 TFLOP/s with such operands on an H200, 55 with a row-major right operand, and
cuBLAS 51 in float32. A copy moves each element once, a product reads it many times.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cuagent.expert.capture.subject import Target
from cuagent.expert.edits import PREPARATIONS, prepared_names
from cuagent.expert.graph.graph import Graph, Kind, Node
from cuagent.expert.products.halves import HIGH, LOW, SCALE, padded
from cuagent.expert.products.product import parts_of
from cuagent.expert.products.qualify import SPLIT_CAPABILITIES, is_large, splits
from cuagent.expert.rules.contractions import MATRIX_TRANSPOSE

TRANSPOSED = "{0}.t().contiguous()"
COPIED = "{0}.contiguous()"
VIEWS = ("{0}", "{0}.t()", MATRIX_TRANSPOSE, f"{MATRIX_TRANSPOSE}.t()")
PREPARATIONS |= {TRANSPOSED, *(SCALE.replace("{0}", view) for view in VIEWS)}
CALLS = ("torch.matmul({0}, {1})", "torch.mm({0}, {1})", "torch.bmm({0}, {1})")
LEAST_REUSE = 256
"""Least number of times that the product must read each operand element for a copy to cost little
in comparison."""


def copy_operands(graph: Graph, target: Target, keep: frozenset[str], split: bool) -> Graph:
    """Return the graph with `matmul(a, b)`, for a matrix b, replaced by a linear layer with the
    transpose of b.

    A product whose operands are split needs no transpose, because the split reads any strides.
    `split`: weights of such products are split once, in advance.
    """
    if target.capability not in SPLIT_CAPABILITIES or target.tf32:
        return graph
    prepared = prepared_names(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        sizes = None if node.origin in keep else _sizes(graph, node)
        if sizes is None or not is_large(*sizes, target):
            nodes.append(node)
            continue
        weight, view = _source(graph, str(node.args[1]))
        if split and weight.name in prepared and splits(*sizes, target, prepared=True):
            parts = _parts(node, weight, view, sizes)
            nodes += [*parts, replace(node, beside=tuple(part.name for part in parts))]
        elif (node.op in CALLS or view != "{0}") and min(sizes[:2]) >= LEAST_REUSE:
            nodes += [node] if split and splits(*sizes, target) else _linear(graph, node)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _sizes(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """Return (rows, columns, K) of a float32 product whose right operand is a matrix; None for
    other nodes."""
    linear = node.op.startswith("F.linear(")
    if node.kind is not Kind.LIBRARY or not (linear or node.op in CALLS) or not node.contiguous:
        return None
    left, right = (graph.node(str(arg)) for arg in node.args[:2])
    if {node.dtype, left.dtype, right.dtype} != {"float32"}:
        return None
    if len(left.shape) < 2 or len(right.shape) != 2:
        return None
    return math.prod(left.shape[:-1]), right.shape[0 if linear else 1], left.shape[-1]


def _source(graph: Graph, name: str) -> tuple[Node, str]:
    """Return (node, expression of its matrix transpose) for a transposed view, (the node itself,
    "{0}") for other nodes."""
    node = graph.node(name)
    if node.kind is Kind.STRIDED and node.op == MATRIX_TRANSPOSE:
        return graph.node(str(node.args[0])), node.op
    return node, "{0}"


def _parts(node: Node, weight: Node, view: str, sizes: tuple[int, int, int]) -> list[Node]:
    """Return the nodes that split the `view` of a weight into scaled float16 parts, computed
    once."""
    _, columns, depth = sizes
    w = view if node.op.startswith("F.linear(") else f"{view}.t()"
    high, low, scale = parts_of(node)
    shape = (columns, padded(depth))
    texts = [text.format(w, "{1}", padded(depth) - depth) for text in (HIGH, LOW)]
    PREPARATIONS.update(texts)
    scales = Node(scale, Kind.LIBRARY, SCALE.replace("{0}", w), (weight.name,), (columns,))
    made = [replace(scales, dtype="float32")]
    for name, text in zip((high, low), texts, strict=True):
        args = (weight.name, scale)
        made.append(Node(name, Kind.LIBRARY, text, args, shape, "float16"))
    return [replace(n, origin=node.origin) for n in made]


def as_reductions(graph: Graph, target: Target, keep: frozenset[str]) -> Graph:
    """Return the graph with matrix-vector products, whose time is memory-bound, replaced by
    elementwise products and row sums.

    On a CPU only linear layers with one output feature are replaced: a generated kernel can then
    compute their input and read their result.
    """
    on_gpu = target.device == "cuda"
    nodes: list[Node] = []
    for node in graph.nodes:
        usable = node.origin not in keep and (on_gpu or node.shape[-1:] == (1,))
        found = _reduction(graph, node) if usable else None
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
    made = [
        Node(
            names["vector"], Kind.VIEW, "view", (vector.name,), (depth,), vector.dtype,
            origin=node.origin,
        ),
        Node(
            names["products"], Kind.POINTWISE, "mul", (matrix.name, names["vector"]), shape,
            origin=node.origin,
        ),
    ]  # fmt: skip
    total = Node(
        names["sum"], Kind.REDUCE, "sum", (names["products"],), shape[:-1],
        dims=(len(shape) - 1,), origin=node.origin,
    )  # fmt: skip
    last = total
    made.append(total)
    if bias:
        args = (total.name, bias[0].name)
        last = Node(names["biased"], Kind.POINTWISE, "add", args, total.shape, origin=node.origin)
        made.append(last)
    made[-1] = replace(last, dtype=node.dtype)
    made.append(
        Node(node.name, Kind.VIEW, "view", (last.name,), node.shape, node.dtype, origin=node.origin)
    )
    return made


def _linear(graph: Graph, node: Node) -> list[Node]:
    left, right = (graph.node(str(arg)) for arg in node.args[:2])
    is_linear = node.op.startswith("F.linear(")  # of a transposed view
    right = _source(graph, right.name)[0] if is_linear else right
    added, left_name = [], left.name
    if left.kind is Kind.STRIDED and left.strides[-1] != 1:
        left_name = f"{node.name}_left"
        added.append(_copy(left_name, COPIED, left, left.shape, node))
    right_name = f"{node.name}_right"
    added.append(_copy(right_name, TRANSPOSED, right, right.shape[::-1], node))
    call = node.op if is_linear else "F.linear({0}, {1})"
    return [*added, replace(node, op=call, args=(left_name, right_name, *node.args[2:]))]


def _copy(name: str, call: str, source: Node, shape: tuple[int, ...], node: Node) -> Node:
    return Node(name, Kind.LIBRARY, call, (source.name,), shape, source.dtype, origin=node.origin)
