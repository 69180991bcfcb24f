"""Compute half-precision products in float32 on a CPU without instructions for half types.

torch converts each operand inside a slow loop there: a bf16 linear layer took three times as long
as the same layer in float32 (AVX2, torch 2.13). The result is more precise: it is rounded once,
when the value is stored.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.graph.graph import Graph, Kind, Node

PRODUCTS = ("F.linear(", "F.conv", "torch.matmul(", "torch.mm(", "torch.bmm(", "torch.addmm(")
"""Starts of the texts of library calls that are faster in float32 on such a CPU."""
HALVES = ("bfloat16", "float16")


def widens(device: str) -> bool:
    """Return True if products of half types are slower than those of float32 on this device."""
    if device != "cpu":
        return False
    import torch

    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def widen_products(graph: Graph) -> Graph:
    """Return the graph with casts to float32 around its half-precision products.

    A cast of a parameter is computed once; a cast of another operand is fused into the kernel that
    produces it, and a cast of the result into the kernels that read it.
    """
    nodes: list[Node] = []
    wide: dict[str, str] = {}
    names = {node.name for node in graph.nodes}

    def fresh(name: str) -> str:
        while name in names:
            name += "_"
        names.add(name)
        return name

    def widened(operand: str) -> str:
        if operand not in wide:
            node = graph.node(operand)
            wide[operand] = fresh(f"{operand}_wide")
            nodes.append(Node(wide[operand], Kind.POINTWISE, "cast", (operand,), node.shape))
        return wide[operand]

    for node in graph.nodes:
        if not _is_half_product(node, graph):
            nodes.append(node)
            continue
        args = tuple(widened(a) if isinstance(a, str) else a for a in node.args)
        product = replace(node, name=fresh(f"{node.name}_wide"), args=args, dtype="float32")
        nodes.append(product)
        nodes.append(
            Node(node.name, Kind.POINTWISE, "cast", (product.name,), node.shape, node.dtype)
        )
        wide[node.name] = product.name
    return replace(graph, nodes=tuple(nodes))


def _is_half_product(node: Node, graph: Graph) -> bool:
    return (
        node.kind is Kind.LIBRARY
        and node.op.startswith(PRODUCTS)
        and node.dtype in HALVES
        and all(graph.node(name).dtype in HALVES for name in node.inputs)
    )
