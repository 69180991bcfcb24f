"""Find small linear layers that follow each other, with the elementwise operations between and
behind them.

A squeeze-and-excitation block has two linear layers on one vector for each image. torch launches a
kernel for each of them and for each activation. Here one kernel computes them all: a block has one
row, whose values stay in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from cuagent.expert.edits import Editor, prepared_names
from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.graph.storage import NestError, storage

CALLS = ("F.linear({0}, {1})", "F.linear({0}, {1}, bias={2})")
MOST_ROWS = 512
"""Largest number of rows. With more, a product fills the GPU and reads each weight less often."""
MOST_WEIGHTS = 1 << 19
"""Largest size in bytes of all weights, which each block reads: a multiprocessor reads about 100 GB
per second from the L2 cache, and two launches of the library take 8 us."""
FEW_ROWS, MOST_OF_FEW = 8, 1 << 17
"""Number of rows below which the weights are bounded by MOST_OF_FEW instead: kernels of one layer
read them by more multiprocessors than there are rows. An estimate."""
MOST_READ = 1 << 25
"""Largest number of bytes of weights that all blocks read."""
MOST_FEATURES = 1 << 13
"""Largest number of values of a row that are in shared memory together."""


@dataclass(frozen=True)
class Layer:
    """One linear layer and the elementwise operations behind it."""

    product: str
    """Name of the linear layer's result in `after`."""
    inputs: int
    outputs: int
    bias: bool
    after: tuple[Node, ...] = ()
    """Elementwise nodes, in order. Their arguments are `product`, other nodes of `after`, and
    numbers."""

    @property
    def value(self) -> str:
        """Name of the value that the next layer reads."""
        return self.after[-1].name if self.after else self.product


@dataclass
class _Chain:
    """Layers that one kernel can compute, and the last node that has their value."""

    first: Node
    layers: list[Layer]
    args: list[str]
    last: Node


def with_mlps(graph: Graph, device: str, keep: frozenset[str]) -> Graph:
    """Return the graph with chains of small linear layers replaced by nodes of the kind `MLP`.

    `keep`: origins that stay unchanged.
    """
    if device != "cuda" or not any(node.op in CALLS for node in graph.nodes):
        return graph
    prepared, editor, taken = prepared_names(graph), Editor(graph), set[str]()
    for node in graph.nodes:
        if node.name in taken or not _qualifies(graph, node, prepared, keep):
            continue
        chain = _chain(graph, node, prepared, keep)
        taken |= {layer.product for layer in chain.layers}
        if len(chain.layers) > 1 and _is_small(chain):
            last = chain.last
            made = replace(
                last, kind=Kind.MLP, op="mlp", args=tuple(chain.args),
                spec=tuple(chain.layers), dims=(), origin=_origin(graph, chain),
            )  # fmt: skip
            editor.replaced[last.name] = [made]
    return editor.result() if editor.replaced else graph


def _qualifies(graph: Graph, node: Node, prepared: Collection[str], keep: frozenset[str]) -> bool:
    """Return True for a linear layer of few rows whose weight and bias are known before the
    call."""
    if node.kind is not Kind.LIBRARY or node.op not in CALLS or not node.contiguous:
        return False
    if node.origin in keep or len(node.shape) != 2 or node.shape[0] > MOST_ROWS:
        return False
    operands = [graph.node(str(arg)) for arg in node.args]
    constant = all(arg in prepared for arg in node.args[1:])
    same = node.dtype in FLOATS and {n.dtype for n in operands} == {node.dtype}
    return constant and same and all(_is_whole(graph, n) for n in operands[1:])


def _is_whole(graph: Graph, node: Node) -> bool:
    """Return True if a parameter is stored contiguously, from the first element of its memory."""
    try:
        base, _, offset = storage(graph, node)
    except NestError:
        return False
    return (
        node.kind is not Kind.STRIDED and base.contiguous and base.size == node.size and not offset
    )


def _chain(graph: Graph, first: Node, prepared: Collection[str], keep: frozenset[str]) -> _Chain:
    """Return the layers from `first` on that only follow each other."""
    chain = _Chain(first, [], [str(first.args[0])], first)
    node = first
    while True:
        chain.layers.append(
            Layer(node.name, graph.node(str(node.args[0])).shape[-1], node.shape[-1],
                  len(node.args) > 2)
        )  # fmt: skip
        chain.args += map(str, node.args[1:])
        chain.last = node
        following = _append_elementwise(graph, chain, keep)
        if following is None or not _qualifies(graph, following, prepared, keep):
            return chain
        if following.args[1] == chain.last.name:
            return chain
        node = following


def _append_elementwise(graph: Graph, chain: _Chain, keep: frozenset[str]) -> Node | None:
    """Append the elementwise operations behind the last layer, and set the node that has its value;
    return the linear layer that alone reads it, or None."""
    users, layer = graph.users(), chain.layers[-1]
    known = {layer.product: layer.product}
    """Name of the value in the layer's `after`, by the name of the node or of its view."""
    after: list[Node] = []
    settled: tuple[tuple[Node, ...], Node] = ((), chain.last)
    reader: Node | None = None
    pending = {layer.product}
    while True:
        # A value is settled if everything that its operands' readers need is inside.
        if len(pending) == 1:
            (name,) = pending
            owner = graph.node(name)
            settled = (tuple(after), owner)
            readers = users[name]
            if name in graph.outputs or not readers:
                break
            linear = readers[0] if len(readers) == 1 else None
            if linear is not None and linear.op in CALLS:
                reader = linear
                break
        found = _next(graph, pending, known, keep)
        if found is None:
            break
        if found.kind is Kind.VIEW:
            known[found.name] = known[found.inputs[0]]
        else:
            known[found.name] = found.name
            args = tuple(known[a] if isinstance(a, str) else a for a in found.args)
            after.append(replace(found, args=args))
        pending.add(found.name)
        pending -= {p for p in pending if _is_read_inside(users[p], known)}
    chain.layers[-1], chain.last = replace(layer, after=settled[0]), settled[1]
    return reader


def _is_read_inside(readers: list[Node], known: Collection[str]) -> bool:
    return bool(readers) and all(reader.name in known for reader in readers)


def _next(
    graph: Graph, pending: Collection[str], known: Collection[str], keep: frozenset[str]
) -> Node | None:
    """Return the next reader of a pending value that the kernel can compute."""
    for node in graph.nodes:
        if node.name in known or not set(node.inputs) & set(pending):
            continue
        inside = all(a in known for a in node.inputs) and not set(node.inputs) & set(graph.outputs)
        rows = node.shape[:1] == graph.node(node.inputs[0]).shape[:1]
        single = node.size == graph.node(node.inputs[0]).size and rows
        view = node.kind is Kind.VIEW and math.prod(node.shape[2:]) == 1 and len(node.shape) > 1
        computed = node.kind is Kind.POINTWISE and node.origin not in keep
        computed = computed and node.dtype in (*FLOATS, "bool")
        if inside and single and (view or computed):
            return node
    return None


def _is_small(chain: _Chain) -> bool:
    rows, layers = chain.first.shape[0], chain.layers
    size = ITEM_BYTES[chain.first.dtype]
    weights = sum(layer.inputs * layer.outputs for layer in layers) * size
    features = sum(layer.inputs for layer in layers)
    most = MOST_WEIGHTS if rows >= FEW_ROWS else MOST_OF_FEW
    return weights <= most and rows * weights <= MOST_READ and features <= MOST_FEATURES


def _origin(graph: Graph, chain: _Chain) -> str:
    """Return the captured operator of the last layer: without its kernel it stays torch's."""
    return graph.node(chain.layers[-1].product).origin
