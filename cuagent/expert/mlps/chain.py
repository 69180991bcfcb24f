"""Find linear layers of many rows that follow each other and are narrow enough for one kernel.

A block computes some rows of all layers. The values between two layers stay in registers and shared
memory, so only the first input and the last result go through the GPU's memory, and one launch
replaces one or two for each layer. Each block reads all weights, from the L2 cache. For few rows
`match.py` has another kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import Graph, Kind, Node
from cuagent.expert.products.match import product_of
from cuagent.expert.products.product import Product
from cuagent.expert.products.qualify import LEAST_ROWS, qualifies
from cuagent.expert.streaming.group import Step

MOST_WIDTH = 128
"""Largest number of outputs of a layer: a block has all of them, in float32 registers. The tiles of
a layer then take at most 128 KiB of shared memory in float32, whose kernels need a GPU with 163,
and 64 KiB in half precision."""
MOST_DEPTH = 4096
"""Largest number of inputs of the first layer, which each block reads in a loop."""
LEAST_WIDTH = 16
"""Least width of a tile of the tensor cores; narrower layers are padded with zeros."""


@dataclass(frozen=True)
class LayerChain:
    """Linear layers that one kernel computes one after another, each with the elementwise nodes
    behind it as its epilogue."""

    layers: tuple[Product, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        return tuple(node for layer in self.layers for node in layer.nodes)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.layers[-1].outputs

    @property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Mapping as in `Product.places`, over all layers."""
        return {name: place for layer in self.layers for name, place in layer.places.items()}

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that the kernel reads, by name, in order of first use."""
        inside = {layer.outputs[0] for layer in self.layers[:-1]}
        found = {n: dtype for layer in self.layers for n, dtype in layer.tensors.items()}
        return {name: dtype for name, dtype in found.items() if name not in inside}

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of inputs of the first layer, then of outputs of each layer."""
        return (self.layers[0].depth, *(layer.columns for layer in self.layers))


def padded(width: int) -> int:
    """Return the width of a layer's tile: the next power of two, at least LEAST_WIDTH."""
    return max(LEAST_WIDTH, 1 << (width - 1).bit_length())


def with_layer_chains(
    steps: Sequence[Step], graph: Graph, target: Target, keep: frozenset[str]
) -> tuple[Step | LayerChain, ...]:
    """Return the steps with each chain of two linear layers or more replaced by one step.

    Layers whose origin is in `keep` stay as they are.
    """
    links = _links(steps, graph, target, keep)
    following = {_next(link, links, graph): name for name, link in links.items()}
    chains: list[tuple[LayerChain, set[int]]] = []
    for name in links:
        if name in following:
            continue
        chain = [links[name]]
        while (after := _next(chain[-1], links, graph)) is not None:
            chain.append(links[after])
        if len(chain) > 1:
            taken = {id(step) for link in chain for step in link.steps}
            chains.append((LayerChain(tuple(link.product for link in chain)), taken))
    return _placed(steps, chains)


def may_chain(graph: Graph, target: Target) -> bool:
    """Return True if a graph has a narrow linear layer that reads another one, directly or through
    elementwise nodes."""
    narrow = {
        node.name: node
        for node in graph.nodes
        if qualifies(node, target)
        and node.shape[-1] <= MOST_WIDTH
        and node.size >= LEAST_ROWS * node.shape[-1]
        and len(graph.node(str(node.args[1])).shape) == 2
    }
    for node in narrow.values():
        before = {str(node.args[0])}
        while before:
            if before & narrow.keys():
                return True
            found = (graph.node(name) for name in before)
            inner = [n for n in found if n.kind in (Kind.POINTWISE, Kind.VIEW)]
            before = {name for n in inner for name in n.inputs if graph.node(name).size == n.size}
    return False


@dataclass(frozen=True)
class _Link:
    product: Product
    steps: tuple[Step, ...]
    """The product's step, and the group that becomes its epilogue."""


def _links(
    steps: Sequence[Step], graph: Graph, target: Target, keep: frozenset[str]
) -> dict[str, _Link]:
    """Return the linear layers that may be part of a chain, by the name of their product."""
    found: dict[str, _Link] = {}
    absorbed: set[int] = set()
    for step in steps:
        if not isinstance(step, Node) or step.origin in keep or not qualifies(step, target):
            continue
        product, group = product_of(step, steps, graph)
        if group is not None and id(group) in absorbed:
            product, group = product_of(step, steps, graph, alone=True)
        if product is None or not _is_layer(product, graph):
            continue
        absorbed |= {id(group)} if group is not None else set()
        found[step.name] = _Link(product, (step, *([group] if group is not None else [])))
    return found


def _is_layer(product: Product, graph: Graph) -> bool:
    weight = graph.node(str(product.node.args[1]))
    narrow = product.columns <= MOST_WIDTH and product.depth <= MOST_DEPTH
    single = product.batch == 1 and len(product.outputs) == 1 and len(weight.shape) == 2
    return narrow and single and product.rows >= LEAST_ROWS


def _next(link: _Link, links: dict[str, _Link], graph: Graph) -> str | None:
    """Return the name of the layer that alone reads the result of a layer, as rows that lie one
    after another; None if there is none."""
    product = link.product
    (output,) = product.outputs
    readers = {user.name for user in graph.users()[output]}
    if output in graph.outputs or len(readers) != 1:
        return None
    (name,) = readers
    if name not in links:
        return None
    left, after = links[name].product.left, links[name].product
    rows = left.tensor == output and (left.row, left.column, left.offset) == (product.columns, 1, 0)
    alone = [arg for arg in after.node.args if arg == output] == [after.node.args[0]]
    same = after.rows == product.rows and after.depth == product.columns
    return name if rows and alone and same and after.node.dtype == product.node.dtype else None


def _placed(
    steps: Sequence[Step], chains: list[tuple[LayerChain, set[int]]]
) -> tuple[Step | LayerChain, ...]:
    """Return the steps with each chain at the position of its last step, where all operands have
    been computed."""
    result: list[Step | LayerChain] = []
    last = {max(n for n, s in enumerate(steps) if id(s) in taken): c for c, taken in chains}
    inside = {each for _, taken in chains for each in taken}
    for position, step in enumerate(steps):
        if id(step) not in inside:
            result.append(step)
        elif position in last:
            result.append(last[position])
    return tuple(result)
