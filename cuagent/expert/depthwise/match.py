"""Find depthwise convolutions, whose results each read one channel, and describe their windows.

Memory traffic bounds their time: each result reads few elements, so a direct kernel can run at the
memory's speed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cuagent.expert.anchored.values import Index, Values
from cuagent.expert.convolutions.convolution import settings_of
from cuagent.expert.edits import PREPARATIONS
from cuagent.expert.graph.graph import (
    TAPS,
    Depthwise,
    Graph,
    Kind,
    Node,
    Window,
    contiguous_strides,
)
from cuagent.expert.graph.orders import CHANNELS_LAST
from cuagent.expert.kernel import Request
from cuagent.expert.streaming.text import Writer

MAX_TAPS = {"cuda": 128, "cpu": 128}
"""Largest number of weights per channel, by device; larger windows are faster as a product."""
MAX_TAPS_OF_SOLID = 25
"""`MAX_TAPS` for three dimensions on the CPU, where the kernel has no sums in registers."""
CALLS = ("F.conv1d(", "F.conv2d(", "F.conv3d(")
PREPARATIONS |= {TAPS}


def with_depthwise(graph: Graph, device: str, keep: frozenset[str]) -> Graph:
    """Return the graph with torch's depthwise convolutions replaced by nodes of the kind
    `DEPTHWISE`.
    """
    nodes = tuple(
        _depthwise(n, graph, device) if n.origin not in keep and _qualifies(n, graph, device) else n
        for n in graph.nodes
    )
    return _without_slices(replace(graph, nodes=nodes))


def _without_slices(graph: Graph) -> Graph:
    """Return the graph in which a convolution computes only the results that a slice after it
    keeps.

    Causal convolutions cut off the last results.
    """
    users, cut = graph.users(), {}
    for node in graph.nodes:
        given = graph.node(node.inputs[0]) if node.kind is Kind.STRIDED else node
        if given.kind is not Kind.DEPTHWISE or node.kind is not Kind.STRIDED or node.offset:
            continue
        alone = len(users[given.name]) == 1 and given.name not in graph.outputs
        leading = node.shape[:-1] == given.shape[:-1]
        if alone and leading and node.strides == contiguous_strides(given.shape):
            *sides, last = given.spec.sides
            spec = replace(given.spec, sides=(*sides, replace(last, count=node.shape[-1])))
            cut[node.name] = replace(given, name=node.name, shape=node.shape, spec=spec)
    dropped = {graph.node(name).inputs[0] for name in cut}
    nodes = tuple(cut.get(n.name, n) for n in graph.nodes if n.name not in dropped)
    return replace(graph, nodes=nodes)


def _qualifies(node: Node, graph: Graph, device: str) -> bool:
    if node.kind is not Kind.LIBRARY or not node.op.startswith(CALLS):
        return False
    if not node.contiguous and not (_follows(node, graph, device) and node.order == CHANNELS_LAST):
        return False
    x, weight = graph.node(str(node.args[0])), graph.node(str(node.args[1]))
    settings = settings_of(node)
    whole = all(isinstance(settings[k], list) for k in ("stride", "padding", "dilation"))
    depthwise = settings["groups"] == x.shape[1] > 1 and len(x.shape) == len(node.shape)
    solid = len(weight.shape) == 5 and device == "cpu"
    most = MAX_TAPS_OF_SOLID if solid else MAX_TAPS[device]
    return whole and depthwise and math.prod(weight.shape[2:]) <= most


def _follows(node: Node, graph: Graph, device: str) -> bool:
    """Return True if a kernel can compute this convolution in channels-last layout, which the
    argument has in the reference."""
    x = graph.node(str(node.args[0]))
    return device == "cuda" and x.name in graph.last and node.shape[1] == x.shape[1]


def _depthwise(node: Node, graph: Graph, device: str) -> Node:
    x, weight = graph.node(str(node.args[0])), graph.node(str(node.args[1]))
    settings = settings_of(node)
    sides = tuple(
        Window(extent, count, kernel, stride, padding, dilation)
        for extent, count, kernel, stride, padding, dilation in zip(
            x.shape[2:],
            node.shape[2:],
            weight.shape[2:],
            settings["stride"],
            settings["padding"],
            settings["dilation"],
            strict=True,
        )
    )
    return replace(
        node,
        kind=Kind.DEPTHWISE,
        op="depthwise",
        dims=tuple(range(2, len(node.shape))),
        contiguous=True,
        order=(),
        spec=Depthwise(sides, node.shape[1] // x.shape[1], _follows(node, graph, device)),
    )


class DepthwiseText:
    """Generates C++ text that the C++ and the CUDA kernel of a depthwise convolution have in
    common.

    Dimension 0 is the sample, 1 the channel, `inner` the last. The variables `i` are indices of the
    result, `p` of the input, `t` of the window.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.w = request, Writer()
        self.anchor = next(n for n in request.group.nodes if n.kind is Kind.DEPTHWISE)
        self.values = Values(request.graph, request.group, self.anchor, self.w)
        self.shape = self.anchor.shape
        self.sides = dict(zip(self.anchor.dims, self.anchor.spec.sides, strict=True))
        self.multiplier = self.anchor.spec.multiplier
        self.inner = len(self.shape) - 1

    def head(self, *includes: str) -> None:
        w, sides = self.w, self.sides.values()
        for line in self.request.title.splitlines():
            w(f"// {line}")
        w(
            f"// {self.shape[0] * self.shape[1]} planes of {_by(s.count for s in sides)} results, "
            f"windows of {_by(s.kernel for s in sides)}."
        )
        for header in includes:
            w(f'#include "{header}"')
        w()

    def index(self) -> Index:
        """Return the C++ index variables of the result, one per dimension."""
        return tuple(f"i{k}" for k in range(len(self.shape)))

    def element(self, places: dict[int, str]) -> str:
        """Declare a variable with the input element at the indices `places` (by dimension); return
        its name.
        """
        channel = "i1" if self.multiplier == 1 else f"i1 / {self.multiplier}"
        index = ("i0", channel, *(places[k] for k in self.sides))
        return self.values.at(self.anchor.args[0], index)

    def weight(self, taps: dict[int, str]) -> str:
        """Declare a variable with the weight at the window indices `taps` (by dimension); return
        its name.
        """
        return self.values.at(self.anchor.args[1], ("i1", "0", *(taps[k] for k in self.sides)))

    def bias(self) -> str:
        """Declare a variable with the channel's bias; return its name, or "0" without a bias."""
        return self.values.at(self.anchor.args[2], ("i1",)) if len(self.anchor.args) > 2 else "0.f"


def _by(extents: object) -> str:
    return " x ".join(map(str, extents))  # type: ignore[call-overload]


def place(k: int, side: Window, tap: str) -> str:
    """Return the C++ expression of the input index along dimension `k` that window element `tap`
    reads.
    """
    scaled = f"i{k} * {side.stride}" if side.stride > 1 else f"i{k}"
    moved = f"{tap} * {side.dilation}" if side.dilation > 1 else tap
    return f"{scaled} + {moved}" + (f" - {side.padding}" if side.padding else "")
