"""Let a generated kernel of a convolution read its input before a padding with zeros.

The kernel masks taps outside of its input on both sides of each dimension, so that both sides may
differ: causal convolutions pad the front only, others of stride 2 the end. The padded value is then
not stored.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cuagent.expert.convolutions.convolution import settings_of
from cuagent.expert.graph.graph import Graph, Kind, Node

PADDING = re.compile(r", padding=(\[[^\]]*\]|\([^)]*\)|\d+)")
"""Matches the padding in the text of a convolution."""
LAYERS = ("F.conv1d(", "F.conv2d(", "F.conv3d(")
UNSTORED = (Kind.WINDOW, Kind.INSIDE, Kind.INDEX, Kind.GATHER, Kind.TAKE)
"""Kinds of nodes without memory of their own."""


def without_padding(graph: Graph, node: Node) -> Node | None:
    """Return a convolution that reads the input before it was padded with zeros, and pads as much
    before the first place itself; None for any other node.

    The node keeps its shape, which tells how many places behind the last one its windows reach.
    """
    if node.kind is not Kind.LIBRARY or not node.op.startswith(LAYERS):
        return None
    found = _before_padding(graph, graph.node(str(node.args[0])))
    padding = settings_of(node)["padding"]
    if found is None or not isinstance(padding, list):
        return None
    source, starts = found
    added = [starts.get(k + 2, 0) + n for k, n in enumerate(padding)]
    call = f"{PADDING.sub('', node.op)[:-1]}, padding={added})"
    return replace(node, op=call, args=(source, *node.args[1:]))


def _before_padding(graph: Graph, value: Node) -> tuple[str, dict[int, int]] | None:
    """Return (name of a value, places before its first one by dimension) if `value` is that value
    between zeros along spatial dimensions; None if it is not."""
    ranges: dict[int, tuple[int, int]] = {}
    while value.kind is Kind.POINTWISE and value.op == "where":
        inside, *parts = value.args
        test = graph.node(str(inside))
        if test.kind is not Kind.INSIDE or not isinstance(parts[0], str) or parts[1] != 0:
            return None
        (dim,) = test.dims
        if dim < 2 or dim in ranges:
            return None
        ranges[dim] = test.window
        value = graph.node(parts[0])
    dims = dict(ranges)
    while value.kind is Kind.WINDOW:
        (dim,) = value.dims
        if dims.pop(dim, None) != value.window:
            return None
        value = graph.node(value.inputs[0])
    if dims or not ranges or value.kind in UNSTORED:
        return None
    return value.name, {dim: start for dim, (start, _) in ranges.items()}
