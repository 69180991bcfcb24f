"""Decide which products a generated kernel may compute faster than the library.

Half-precision batches stay with the library, which was 1.1 times as fast as a kernel with an
epilogue.
"""

from __future__ import annotations

import math

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import Graph, Kind, Node
from cuagent.expert.products.product import Product, batch_of
from cuagent.expert.products.rates import DOUBT, epilogue_pays, share_of_library
from cuagent.expert.products.tiles import FEW_ROWS, SMALL, SPLIT, Tile, occupied

SPLIT_CAPABILITIES = {(8, 0), (9, 0), (10, 0), (10, 3)}
"""Compute capabilities with tensor cores for TF32 that are at least six times as fast as float32
arithmetic. Elsewhere three TF32 products are no faster than one of float32."""
SPLIT_BEFORE = {(9, 0), (10, 0), (10, 3)}
"""Compute capabilities for which operands may be split before the product: shared memory has room
for three pipeline stages of both parts of both operands."""
LEAST_SPLIT_OPERATIONS = 1 << 30
"""Least number of multiplications of a product whose operands are split before it; for fewer,
launching the split costs too much.

On an H200 1024 x 1024 x 1024 took 0.033 ms and cuBLAS 0.060, 512 x 512 x 2048 took 0.034 and 0.036.
"""
LEAST_SPLIT_REUSE, LEAST_SPLIT_DEPTH = 200, 256
"""Least rows x columns / (rows + columns), and least K, of a product whose operands are split
before it.

Both are estimates from the rates of both products and the bytes that a split moves.
"""
LEAST_OPERATIONS = 1 << 28
"""Least number of multiplications of a product that a kernel computes; for fewer, the launch takes
most of the time."""
CALLS = ("F.linear(", "torch.matmul({0}, {1})", "torch.mm({0}, {1})", "torch.bmm({0}, {1})")
LONG_DEPTH, LEAST_OCCUPIED = 8192, 0.5
"""A product with at least this K stays with cuBLAS if its tiles occupy a smaller fraction of the
multiprocessors than `LEAST_OCCUPIED`: cuBLAS then gains by splitting K.

On an H200 a generated kernel that splits K took 0.50 ms for 256 x 256 x 131072, cuBLAS 0.34.
"""
LEAST_ROWS = 16
"""Least number of rows of a product of fewer multiplications for which a kernel is tried: one tile
of the tensor cores."""
MOST_SMALL, LEAST_BATCH = 32, 4096
"""Largest number of rows and columns of a small product, and least number of such products in a
batch."""
MOST_ROWS, LEAST_WEIGHTS = 16, 1 << 20
"""Largest number of rows, and least number of elements of the right operand, of a product whose
time is that of reading the right operand. 16 rows are one tile of the tensor cores."""
MOST_DEPTH = 4096
"""Largest K of a half-precision product for which a kernel with an epilogue is used."""


def qualifies(node: Node, target: Target) -> bool:
    """Return True for a product that a kernel can compute on the tensor cores of `target`."""
    if node.kind is not Kind.LIBRARY or not node.op.startswith(CALLS) or not node.contiguous:
        return False
    if node.dtype == "float32":
        return target.capability in SPLIT_CAPABILITIES and not target.tf32
    return target.capability >= (8, 0) and node.dtype in ("bfloat16", "float16")


def reads_weights(node: Node, graph: Graph) -> bool:
    """Return True for a half-precision product of so few rows that reading its right operand takes
    its time."""
    right = graph.node(str(node.args[1]))
    few = math.prod(node.shape[:-1]) <= MOST_ROWS and len(right.shape) == 2
    return few and node.dtype != "float32" and right.size >= LEAST_WEIGHTS


def is_batch_of_small(node: Node, graph: Graph) -> bool:
    """Return True for a large batch of products that fit into one small tile each."""
    small = len(node.shape) > 2 and max(node.shape[-2:]) <= MOST_SMALL
    return small and batch_of(graph, node) >= LEAST_BATCH


def is_small(node: Node, graph: Graph) -> bool:
    """Return True for a product for which `may_gain` has the option `small`."""
    return reads_weights(node, graph) or is_batch_of_small(node, graph)


def may_launch_less(node: Node, graph: Graph) -> bool:
    """Return True for a product of so few multiplications that its launch takes most of the time,
    with an elementwise operation behind it, which one kernel could compute too."""
    rows, depth = node.size // node.shape[-1], graph.node(str(node.args[0])).shape[-1]
    readers = graph.users()[node.name]
    elementwise = bool(readers) and all(reader.kind is Kind.POINTWISE for reader in readers)
    return rows >= LEAST_ROWS and node.size * depth < LEAST_OPERATIONS and elementwise


def tiles_of(product: Product, graph: Graph) -> tuple[Tile, ...]:
    """Return the tiles among which that of a product is chosen; () for those of its dtype."""
    if product.split:
        return SPLIT
    if reads_weights(product.node, graph):
        return FEW_ROWS
    return SMALL if is_batch_of_small(product.node, graph) else ()


def may_gain(product: Product, graph: Graph, target: Target, *, small: bool = False) -> bool:
    """Return True if a kernel with the product's epilogue may be faster than the library.

    `small`: kernels are also used for products that `reads_weights` or `is_batch_of_small` names,
    and for others of few multiplications with an epilogue, which save a launch.
    """
    if reads_weights(product.node, graph):
        return small and bool(product.epilogue)
    if is_batch_of_small(product.node, graph):
        return small
    rows, columns, depth, batch = product.rows, product.columns, product.depth, product.batch
    if batch * rows * columns * depth < LEAST_OPERATIONS:
        return small and bool(product.epilogue) and batch * rows >= LEAST_ROWS
    if product.node.dtype == "float32":
        return is_large(rows, columns, depth, target, batch)
    if product.triangle or not (product.epilogue and batch == 1 and depth <= MOST_DEPTH):
        return product.triangle is not None
    return epilogue_pays(product, _moved(product, graph), target)


def is_doubtful(product: Product, graph: Graph, target: Target) -> bool:
    """Return True if the library's product and a kernel for the epilogue of a half-precision
    product may take less time than one kernel, although the model of times says otherwise."""
    if product.node.dtype == "float32" or not product.epilogue:
        return False
    return share_of_library(product, _moved(product, graph), target) > 1 - DOUBT


def _moved(product: Product, graph: Graph) -> list[Node]:
    """Return the tensors that an elementwise kernel for the epilogue reads and writes, the
    product's result first."""
    read = dict.fromkeys(matrix.tensor for matrix in product.reads.values())
    return [product.node, *(graph.node(name) for name in (*product.outputs, *read))]


def splits(
    rows: int, columns: int, depth: int, target: Target, batch: int = 1, *, prepared: bool = False
) -> bool:
    """Return True if the operands of a float32 product are to be split into float16 parts before
    the product.

    The parts of both operands must be written and read again, except those of a weight, which are
    computed once (`prepared`).
    """
    if target.capability not in SPLIT_BEFORE or target.tf32:
        return False
    reuse = columns if prepared else rows * columns / (rows + columns)
    if batch * rows * columns * depth < LEAST_SPLIT_OPERATIONS:
        return False
    return depth >= LEAST_SPLIT_DEPTH and reuse >= LEAST_SPLIT_REUSE


def is_large(rows: int, columns: int, depth: int, target: Target, batch: int = 1) -> bool:
    """Return True if a float32 product has enough multiplications for a generated kernel and, for a
    long K, enough tiles."""
    if batch * rows * columns * depth < LEAST_OPERATIONS:
        return False
    part = occupied(rows, columns, "float32", target.processors, batch)
    return depth < LONG_DEPTH or part >= LEAST_OCCUPIED
