"""Change the library's calls of convolutions and linear layers so that generated kernels after
them save passes over memory.

torch adds the bias of a convolution in an additional pass; a kernel that reads the result can add
it at no cost. On a CPU torch also copies the bias of a linear layer into the result beforehand: 197
rows of 192 to 768 features took 381 us with a bias and 351 without, a convolution of 64 to 128
channels 252 and 198. In channels-last layout cuDNN does not convert the operands for the tensor
cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions.convolution import COPY, TRANSPOSED, settings_of
from cuagent.expert.convolutions.networks import (
    following,
    may_follow,
    own_in_network,
    reads_channels_last,
)
from cuagent.expert.convolutions.qualify import LARGE, copy_call, qualifies
from cuagent.expert.convolutions.stacked import stack_convolutions
from cuagent.expert.edits import PREPARATIONS
from cuagent.expert.graph.graph import JOIN, Graph, Kind, Node, contiguous_strides
from cuagent.expert.graph.layouts import LAST_WEIGHT
from cuagent.expert.graph.orders import CHANNELS_LAST

WEIGHT = "{0}.movedim(1, -1).contiguous()  "
FORMATS = {4: "torch.channels_last", 5: "torch.channels_last_3d"}
"""torch's channels-last memory format, by number of dimensions."""
PREPARATIONS |= {WEIGHT, LAST_WEIGHT}
EXACT = 0
"""Number of channels in `Node.spec` of a copy that keeps float32: cuDNN rounds to TF32 itself, and
not in all convolutions."""
LEAST_COPIED = 8
"""Least number of channels of an input that an own kernel copies to channels-last layout.

A tile has 16 columns. With 3 channels of 256 x 224 x 224 places it took 235 us on an H200, and
torch's copy 127; with 8 in three dimensions 127, and a kernel of torch.compile 124.
"""
NETWORK = 4
"""Least number of convolutions of the library for which values stay in channels-last layout."""
READERS = (Kind.POINTWISE, Kind.REDUCE, Kind.POOL)
"""Kinds of nodes that generated kernels compute."""


class Layout(StrEnum):
    """Layout in which the library computes convolutions."""

    CAPTURED = "captured"
    TRANSPOSED = "transposed"
    """Channels-last; a kernel behind each convolution transposes the result."""
    NETWORK = "network"
    """Channels-last, also of all values between convolutions."""


def in_network(graph: Graph, target: Target, keep: frozenset[str]) -> bool:
    """Return True if channels-last layout is the best for all convolutions of a network.

    Most of its convolutions are left to the library: they have few places and long sums. In the
    captured layout cuDNN converts operands and results of each. Where own kernels compute most
    convolutions, they are faster; kernels of half precision read and write this layout too
    (`networks.py`). Depthwise kernels read this layout only in a network of half precision.
    """
    depthwise = [n for n in graph.nodes if n.kind is Kind.DEPTHWISE]
    if target.device != "cuda" or not all(may_follow(n, target) for n in depthwise):
        return False
    found = [n for n in graph.nodes if n.kind is Kind.LIBRARY and n.op.startswith("F.conv")]
    left = [
        n
        for n in found
        if n.origin in keep
        or reads_channels_last(graph, n, target)
        or not qualifies(graph, n, target, False)
    ]
    layers = [n for n in left if _in_tensor_cores(n, target)]
    layers = [n for n in layers if _may_be_last(n) and _is_ungrouped(n)]
    return len(layers) >= NETWORK and 2 * len(left) > len(found)


def may_be_network(graph: Graph, keep: frozenset[str]) -> bool:
    """Return True if the values of a network may stay in channels-last layout: it has many plane
    convolutions, and its depthwise ones can follow."""
    planes = [n for n in graph.nodes if n.kind is Kind.LIBRARY and n.op.startswith("F.conv2d(")]
    follow = all(
        len(n.shape) == 4 and n.spec.multiplier == 1
        for n in graph.nodes
        if n.kind is Kind.DEPTHWISE
    )
    return follow and sum(_may_be_last(n) and n.origin not in keep for n in planes) >= NETWORK


def _in_tensor_cores(node: Node, target: Target) -> bool:
    plane = node.op.startswith("F.conv2d(")
    return plane and (node.dtype != "float32" or target.tf32_convolutions)


def arrange(graph: Graph, target: Target, keep: frozenset[str], layout: Layout) -> Graph:
    """Return the graph with biases moved out of the library's convolutions and linear layers.

    `layout`: that of the convolutions. `keep`: origins that stay unchanged.
    """
    device = target.device
    if layout is Layout.NETWORK:
        graph = stack_convolutions(
            graph,
            lambda n: (
                n.origin not in keep
                and _is_arranged(n, device)
                and _may_be_last(n)
                and _is_ungrouped(n)
            ),
            _without_bias,
        )
        graph = _with_copied_inputs(graph, keep)
        graph = own_in_network(graph, target, keep)
        graph = replace(graph, nodes=tuple(map(following, graph.nodes)))
    users, on_cpu = graph.users(), device == "cpu"
    if device == "cuda" and layout is Layout.CAPTURED:
        graph = replace(graph, nodes=tuple(_as_returned(graph, n) for n in graph.nodes))
    nodes: list[Node] = []
    for node in graph.nodes:
        readers = [r for u in users[node.name] for r in (_readers(u, users) if on_cpu else [u])]
        joined = [n for n in readers if n.kind is Kind.LIBRARY and n.op.startswith(JOIN) and n.dims]
        read = node.name not in graph.outputs and all(
            r.kind in READERS or r in joined for r in readers
        )
        if not _is_arranged(node, device) or node.origin in keep:
            nodes.append(node)
        elif layout is Layout.TRANSPOSED and _may_be_last(node) and _is_ungrouped(node):
            nodes += _channels_last(graph, node)
        elif layout is Layout.NETWORK and _may_be_last(node):
            weight, node = _of_network(graph, node)
            nodes.append(weight)
            nodes += _without_bias(graph, node) if read and len(node.args) > 2 else [node]
        else:
            if device == "cuda" and layout is Layout.CAPTURED and _copies_weight(graph, node):
                weight, node = _of_network(graph, node)
                nodes.append(weight)
            nodes += _without_bias(graph, node) if read and len(node.args) > 2 else [node]
    return replace(graph, nodes=tuple(nodes))


def _copies_weight(graph: Graph, node: Node) -> bool:
    """Return True if cuDNN copies the weight of a convolution in each call: the argument is in
    channels-last layout, and the weight in another one."""
    if node.order != CHANNELS_LAST or not node.op.startswith("F.conv2d("):
        return False
    weight = graph.node(str(node.args[1]))
    moved = math.prod(weight.shape[2:]) > 1 and weight.shape[1] > 1
    return moved and weight.kind is Kind.PARAMETER and settings_of(node)["groups"] == 1


def _as_returned(graph: Graph, node: Node) -> Node:
    """Return a convolution of an argument in channels-last layout with a result in that layout, as
    cuDNN returns it; the trace on a GPU says contiguous."""
    call = node.kind is Kind.LIBRARY and node.op.startswith("F.conv2d(")
    if call and node.contiguous and node.args[0] in graph.last:
        return replace(node, order=CHANNELS_LAST)
    return node


def _with_copied_inputs(graph: Graph, keep: frozenset[str]) -> Graph:
    """Return the graph with one copy in channels-last layout of each input that convolutions or
    concatenations of channels read.

    torch would copy it in each call of a convolution, and at a third of the rate of a generated
    kernel. A concatenation has the order of its largest argument.
    """
    users, copies = graph.users(), dict[str, list[Node]]()
    for x in graph.nodes:
        image = x.kind is Kind.INPUT and len(x.shape) == 4 and not x.order
        many = image and x.shape[1] >= LEAST_COPIED
        if many and any(_reads_image(user, keep) for user in users[x.name]):
            copies[x.name] = _copy_of_input(x)
    nodes: list[Node] = []
    for node in graph.nodes:
        reads = node.kind in (Kind.POINTWISE, Kind.POOL, Kind.DEPTHWISE)
        reads = reads or _reads_image(node, keep)
        if reads and any(name in copies for name in node.inputs):
            names = {name: copies[name][1].name for name in node.inputs if name in copies}
            node = replace(node, args=tuple(names.get(str(a), a) for a in node.args))
        nodes += [node, *copies.get(node.name, ())]
    return replace(graph, nodes=tuple(nodes)) if copies else graph


def _reads_image(node: Node, keep: frozenset[str]) -> bool:
    """Return True for a convolution of a network, and for a concatenation of channels."""
    if node.kind is not Kind.LIBRARY or node.origin in keep:
        return False
    plane = node.op.startswith("F.conv2d(") and _may_be_last(node)
    return plane or (node.op.startswith(JOIN) and node.dims == (1,) and len(node.shape) == 4)


def _copy_of_input(x: Node) -> list[Node]:
    """Return the nodes of an input's copy in channels-last layout, and of a view of it."""
    shape, name = (x.shape[0], *x.shape[2:], x.shape[1]), f"{x.name}_last_input"
    origin = f"{x.name}_copy"
    copy = Node(name, Kind.LIBRARY, COPY, (x.name,), shape, x.dtype, origin=origin, spec=EXACT)
    steps = contiguous_strides(shape)
    view = Node(
        f"{name}_view", Kind.STRIDED, "{0}.movedim(-1, 1)", (name,), x.shape, x.dtype,
        origin=origin, contiguous=False, strides=(steps[0], steps[-1], *steps[1:-1]),
    )  # fmt: skip
    return [copy, view]


def _readers(node: Node, users: dict[str, list[Node]]) -> list[Node]:
    """Return the nodes that read the value of `node` through reshapes; `node` itself if it is no
    reshape."""
    if node.kind is not Kind.VIEW:
        return [node]
    return [reader for user in users[node.name] for reader in _readers(user, users)] or [node]


def _is_arranged(node: Node, device: str) -> bool:
    """Return True if the bias of this layer may be moved to a separate addition.

    False for half types: the result would be rounded once more, and on a CPU torch adds the bias
    before it rounds.
    """
    names = "F.conv" if device == "cuda" else ("F.conv", "F.linear(")
    usable = device == "cuda" or node.dtype == "float32"
    return node.kind is Kind.LIBRARY and node.op.startswith(names) and usable


def _may_be_last(node: Node) -> bool:
    small = node.size // node.shape[0] < LARGE
    return len(node.shape) in FORMATS and node.contiguous and small


def _is_ungrouped(node: Node) -> bool:
    return bool(settings_of(node)["groups"] == 1)


def _without_bias(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield the nodes of a convolution without its bias, and of the addition of the bias."""
    bias = graph.node(str(node.args[2]))
    shape = (bias.size, *(1,) * (len(node.shape) - 2))
    if node.op.startswith("F.linear("):
        shape = (bias.size,)
    name = f"{node.name}_sum"
    call = node.op.replace(", bias={2}", "")
    yield replace(node, name=name, op=call, args=node.args[:2])
    if bias.shape == shape:
        column = bias.name
    else:
        column = f"{node.name}_bias_column"
        yield Node(column, Kind.VIEW, "view", (bias.name,), shape, bias.dtype, origin=node.origin)
    yield Node(
        node.name, Kind.POINTWISE, "add", (name, column), node.shape, node.dtype,
        origin=node.origin,
    )  # fmt: skip


def _of_network(graph: Graph, node: Node) -> tuple[Node, Node]:
    """Return the nodes of a convolution's weight and of the convolution with a channels-last
    result."""
    weight, name = graph.node(str(node.args[1])), f"{node.name}_channels_last_weight"
    order = (0, *range(2, len(node.shape)), 1)
    stored = Node(
        name, Kind.LIBRARY, LAST_WEIGHT, (weight.name,), weight.shape, weight.dtype,
        origin=node.origin, order=order, contiguous=False,
    )  # fmt: skip
    args = (node.args[0], name, *node.args[2:])
    return stored, replace(node, args=args, order=order)


def _last_weight(graph: Graph, node: Node) -> Node:
    weight, name = graph.node(str(node.args[1])), f"{node.name}_channels_last_weight"
    shape = (weight.shape[0], *weight.shape[2:], weight.shape[1])
    return Node(name, Kind.LIBRARY, WEIGHT, (weight.name,), shape, weight.dtype, origin=node.origin)


def _channels_last(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield the nodes of a convolution in channels-last layout, and the node that transposes its
    result.

    The kernel of the transposition also adds the bias and computes the operations that follow.
    """
    weight, last = _last_weight(graph, node), f"{node.name}_channels_last"
    yield weight
    x = graph.node(str(node.args[0]))
    source, text = x.name, f"{{0}}.contiguous(memory_format={FORMATS[len(node.shape)]})"
    if x.shape[1] >= LEAST_COPIED and copy_call(graph, x) == COPY:
        # torch's copy of 1 GB took 1.13 ms on an H200, half of the possible rate.
        source, text = f"{node.name}_last_input", "{0}.movedim(-1, 1)"
        shape = (x.shape[0], *x.shape[2:], x.shape[1])
        yield Node(
            source, Kind.LIBRARY, COPY, (x.name,), shape, x.dtype, origin=node.origin, spec=EXACT
        )
    call = node.op.replace(", bias={2}", "").replace("{1}", "{1}.movedim(-1, 1)", 1)
    call = f"{call.replace('{0}', text, 1)}.movedim(1, -1).contiguous()"
    shape = (node.shape[0], *node.shape[2:], node.shape[1])
    yield replace(node, name=last, op=call, args=(source, weight.name), shape=shape)
    yield replace(node, op=TRANSPOSED, args=(last, *node.args[2:]))
