"""Compute the transpose of a batched product in place of the product, if only that is read (CUDA).

(A B)^T is B^T A^T, which cuBLAS computes as fast, because it reads either operand transposed. The
kernels after the product then read adjacent elements. Without this, a kernel that sums over the
columns of the product has no good order of reading, and torch computes each operation separately.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.edits import Editor
from cuagent.expert.graph.graph import COMPUTED, Graph, Kind, Node, contiguous_strides
from cuagent.expert.products.operands import CALLS


def transposed_products(graph: Graph, device: str, keep: frozenset[str]) -> Graph:
    """Return the graph with the transposes of batched products computed directly.

    Only pointwise operations and reductions may read them. A graph with permuted results stays,
    because `with_layouts` computes in the order of the product there. `keep` names operators to
    leave alone.
    """
    if device != "cuda" or any(graph.orders):
        return graph
    editor, users = Editor(graph), graph.users()
    for node in graph.nodes:
        if node.origin in keep or not _is_batched(graph, node) or node.name in graph.outputs:
            continue
        views = users[node.name]
        if not views or not all(_is_transpose(graph, v) for v in views):
            continue
        readers = [reader for view in views for reader in users[view.name]]
        outputs = any(view.name in graph.outputs for view in views)
        if outputs or not all(r.kind in COMPUTED for r in readers):
            continue
        editor.replaced[node.name] = [_transposed(graph, node)]
        for view in views:
            editor.replaced[view.name], editor.renamed[view.name] = [], node.name
    return editor.result() if editor.replaced else graph


def _is_batched(graph: Graph, node: Node) -> bool:
    """Return True for a product of two batches of matrices."""
    if node.kind is not Kind.LIBRARY or node.op not in CALLS or not node.contiguous:
        return False
    operands = [graph.node(str(arg)) for arg in node.args]
    return all(len(operand.shape) == len(node.shape) >= 3 for operand in operands)


def _is_transpose(graph: Graph, node: Node) -> bool:
    """Return True if a node is its argument with the last two dimensions swapped."""
    if node.kind is not Kind.STRIDED or node.offset:
        return False
    shape = graph.node(node.inputs[0]).shape
    if len(shape) < 2 or node.shape != (*shape[:-2], shape[-1], shape[-2]):
        return False
    strides = contiguous_strides(shape)
    return node.strides == (*strides[:-2], strides[-1], strides[-2])


def _transposed(graph: Graph, product: Node) -> Node:
    """Return the product with transposed operands in the other order.

    An operand that is a transpose itself is read before that.
    """
    args, texts = [], []
    for k, arg in enumerate(reversed(product.args)):
        operand = graph.node(str(arg))
        read = _is_transpose(graph, operand)
        args.append(operand.inputs[0] if read else operand.name)
        texts.append(f"{{{k}}}" if read else f"{{{k}}}.transpose(-1, -2)")
    *batch, rows, columns = product.shape
    op = f"torch.matmul({', '.join(texts)})"
    return replace(product, op=op, args=tuple(args), shape=(*batch, columns, rows))
