"""Change the library's calls of convolutions and linear layers so that generated kernels after
them save passes over memory.

torch adds the bias of a convolution in an additional pass; a kernel that reads the result can add
it at no cost. On a CPU torch also copies the bias of a linear layer into the result beforehand: 197
rows of 192 to 768 features took 381 us with a bias and 351 without, a convolution of 64 to 128
channels 252 and 198. In channels-last layout cuDNN does not convert the operands for the tensor
cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cuagent.expert.convolutions.convolution import TRANSPOSED, settings_of
from cuagent.expert.convolutions.qualify import LARGE
from cuagent.expert.edits import PREPARATIONS
from cuagent.expert.graph.graph import JOIN, Graph, Kind, Node

WEIGHT = "{0}.movedim(1, -1).contiguous()  "
FORMATS = {4: "torch.channels_last", 5: "torch.channels_last_3d"}
"""torch's channels-last memory format, by number of dimensions."""
PREPARATIONS |= {WEIGHT}
READERS = (Kind.POINTWISE, Kind.REDUCE, Kind.POOL)
"""Kinds of nodes that generated kernels compute."""


def arrange(graph: Graph, device: str, keep: frozenset[str], channels_last: bool) -> Graph:
    """Return the graph with biases moved out of the library's convolutions and linear layers.

    `channels_last`: also change convolutions to channels-last layout. `keep`: origins that stay
    unchanged.
    """
    users, on_cpu = graph.users(), device == "cpu"
    nodes: list[Node] = []
    for node in graph.nodes:
        readers = [r for u in users[node.name] for r in (_readers(u, users) if on_cpu else [u])]
        joined = [n for n in readers if n.kind is Kind.LIBRARY and n.op.startswith(JOIN) and n.dims]
        read = node.name not in graph.outputs and all(
            r.kind in READERS or r in joined for r in readers
        )
        if not _is_arranged(node, device) or node.origin in keep:
            nodes.append(node)
        elif channels_last and _may_be_last(node):
            nodes += _channels_last(graph, node)
        else:
            nodes += _without_bias(graph, node) if read and len(node.args) > 2 else [node]
    return replace(graph, nodes=tuple(nodes))


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
    ungrouped = settings_of(node)["groups"] == 1
    return len(node.shape) in FORMATS and node.contiguous and ungrouped and small


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


def _channels_last(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield the nodes of a convolution in channels-last layout, and the node that transposes its
    result.

    The kernel of the transposition also adds the bias and computes the operations that follow.
    """
    weight = graph.node(str(node.args[1]))
    taps, last = f"{node.name}_channels_last_weight", f"{node.name}_channels_last"
    shape = (weight.shape[0], *weight.shape[2:], weight.shape[1])
    yield Node(taps, Kind.LIBRARY, WEIGHT, (weight.name,), shape, weight.dtype, origin=node.origin)
    x = f"{{0}}.contiguous(memory_format={FORMATS[len(node.shape)]})"
    call = node.op.replace(", bias={2}", "").replace("{1}", "{1}.movedim(-1, 1)", 1)
    call = f"{call.replace('{0}', x, 1)}.movedim(1, -1).contiguous()"
    shape = (node.shape[0], *node.shape[2:], node.shape[1])
    yield replace(node, name=last, op=call, args=(node.args[0], taps), shape=shape)
    yield replace(node, op=TRANSPOSED, args=(last, *node.args[2:]))
