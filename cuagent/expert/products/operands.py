"""Copy the operands of a product so that their elements along K are adjacent.

The tensor cores of sm_90 read TF32 operands from shared memory along K only. Triton's three TF32
products reached 81 TFLOP/s with such operands on an H200, 55 with a row-major right operand, and
cuBLAS 51 in float32. A copy moves each element once, a product reads it many times.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import Graph, Kind, Node
from cuagent.expert.products.match import SPLIT_CAPABILITIES
from cuagent.expert.rewrites import PREPARATIONS

TRANSPOSED = "{0}.t().contiguous()"
COPIED = "{0}.contiguous()"
PREPARATIONS |= {TRANSPOSED}
CALLS = ("torch.matmul({0}, {1})", "torch.mm({0}, {1})")
LEAST_REUSE = 256
"""Least number of products that read an element, from which its copy costs little."""


def copy_operands(graph: Graph, target: Target) -> Graph:
    """Turn `matmul(a, b)` of a matrix b into a linear layer with the transpose of b."""
    if target.capability not in SPLIT_CAPABILITIES or target.tf32:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _linear(graph, node) if _gains(graph, node) else [node]
    return replace(graph, nodes=tuple(nodes))


def _gains(graph: Graph, node: Node) -> bool:
    if node.kind is not Kind.LIBRARY or node.op not in CALLS or node.dtype != "float32":
        return False
    left, right = (graph.node(str(arg)) for arg in node.args)
    rows = math.prod(left.shape[:-1])
    same_type = left.dtype == right.dtype == "float32"
    return same_type and len(right.shape) == 2 and min(rows, right.shape[1]) >= LEAST_REUSE


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
