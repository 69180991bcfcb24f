"""Find single elementwise operations for which torch's own CUDA kernel is slow.

torch's elementwise kernels access vectors only if all operands have one dtype and one layout.
"""

from __future__ import annotations

from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.graph.storage import NestError
from cuagent.expert.streaming.cuda_tiles import tile_of
from cuagent.expert.streaming.group import Group
from cuagent.expert.streaming.nest import nest_of

LEAST_BYTES = 1 << 22
"""Least number of bytes that an operation reads and writes before its kernel is generated.

Below it, the launch takes most of the time of torch's kernel and of a generated one.
"""


def is_slow_call(group: Group, graph: Graph) -> bool:
    """Return True for a group of one operation that torch computes with a slow CUDA kernel.

    Measured on an H200: a conversion from bfloat16 to float32 (101 MB) took 48 us, and 25 us in a
    kernel with vectors. A product with one factor for each channel (198 MB) took 120 us, and 71 us
    together with the activation before it. A shift of two dimensions by `roll` (77 MB) took 182 us,
    because torch moves one dimension after the other. A sum of images in two layouts (38 MB in
    float16) took 113 us, three times as long as in one layout.
    """
    work = [n for n in group.nodes if n.kind is not Kind.VIEW]
    if group.reduced or _bytes(group, graph) < LEAST_BYTES:
        return False
    if all(n.origin.startswith("roll") for n in work):
        return True
    if any(_converts(n, graph) or _broadcasts(n, graph) for n in work):
        return True
    return group.family == "streaming" and _transposes(group, graph)


def _transposes(group: Group, graph: Graph) -> bool:
    """Return True if an operand has another order of dimensions in memory than the result, and a
    kernel reads it in tiles."""
    try:
        return tile_of(nest_of(group, graph)) is not None
    except NestError:
        return False


def _bytes(group: Group, graph: Graph) -> int:
    """Return the bytes of a group's results and of the tensors that it reads."""
    read = {graph.owner(a) for n in group.nodes for a in n.inputs if a not in group.places}
    nodes = [graph.node(name) for name in (*read, *group.outputs)]
    return sum(n.size * ITEM_BYTES.get(n.dtype, 0) for n in nodes)


def _converts(node: Node, graph: Graph) -> bool:
    """Return True for a conversion between floating-point dtypes."""
    if node.op != "cast" or not node.inputs:
        return False
    source = graph.node(node.inputs[0]).dtype
    return source != node.dtype and {source, node.dtype} <= FLOATS


def _broadcasts(node: Node, graph: Graph) -> bool:
    """Return True if an operand is a tensor with fewer elements than the result."""
    if node.dtype not in FLOATS or node.op == "cast":
        return False
    sources = [graph.node(a) for a in node.inputs]
    stored = all(s.dtype in FLOATS for s in sources)
    return stored and any(s.size < node.size for s in sources)
