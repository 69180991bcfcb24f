"""Find products that a generated kernel may compute faster than the library.

A product qualifies if both operands have rows of K adjacent elements, as the weight of a linear
layer has. Operands of a batch are not copied into this form: with copies, products on an H200 were
only as fast as cuBLAS. Half-precision batches stay with the library, which was 1.1 times as fast as
a kernel with an epilogue. An elementwise group becomes the epilogue of a product's kernel if it is
the only reader of the product, and each tensor that it reads has one row stride and one column
stride over the product.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import Graph, Kind, Node, Shape, contiguous_strides
from cuagent.expert.products.expressions import EXPRESSIONS
from cuagent.expert.products.rates import epilogue_pays
from cuagent.expert.products.tiles import occupied
from cuagent.expert.streaming.group import Group, Step
from cuagent.expert.streaming.nest import NestError, storage

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
TRIANGLE = re.compile(r"torch\.ops\.aten\.(tri[ul])\.default\(\{0\}(?:, (-?\d+))?\)")
MOST_BATCH = 65535
"""Largest batch of a product: CUDA's limit of a grid's second dimension."""
LONG_DEPTH, LEAST_OCCUPIED = 8192, 0.5
"""A product with at least this K stays with cuBLAS if its tiles occupy a smaller fraction of the
multiprocessors than `LEAST_OCCUPIED`: cuBLAS then gains by splitting K.

On an H200 a generated kernel that splits K took 0.50 ms for 256 x 256 x 131072, cuBLAS 0.34.
"""
MOST_DEPTH = 4096
"""Largest K of a half-precision product for which a kernel with an epilogue is used."""


@dataclass(frozen=True)
class Matrix:
    """Strides of a tensor, in elements, over the indices (batch, m, n) of a product.

    The element (batch, m, n) is at index `offset + batch * sample + m * row + n * column`.
    """

    tensor: str
    """Name of the graph's node whose tensor has these strides."""
    dtype: str
    row: int
    column: int
    offset: int
    sample: int = 0


@dataclass(frozen=True)
class Product:
    """A product of an M x K and an N x K operand that one kernel computes, with the group of
    fused nodes that follows as its epilogue.

    `rows`, `columns` and `depth` are M, N and K.
    """

    node: Node
    rows: int
    columns: int
    depth: int
    left: Matrix
    """Left operand. `row` is its stride along the result's rows, `column` its stride along K."""
    right: Matrix
    """Right operand. `row` is its stride along the result's columns, `column` its stride along
    K."""
    bias: Matrix | None
    epilogue: tuple[Node, ...]
    """Elementwise nodes computed after the product, in order."""
    reads: dict[tuple[str, str], Matrix]
    """Tensors that the epilogue reads, by (name of the reading node, name of its argument)."""
    outputs: tuple[str, ...]
    places: dict[str, tuple[int, ...]]
    """Mapping with the names of the computed nodes as keys, as in `Group.places`; the values are
    empty."""
    batch: int = 1
    """Number of matrix products in the batch."""
    split: bool = False
    """True if both float32 operands are split into two float16 parts each before the product."""
    parts: tuple[str, ...] = ()
    """Names of the right operand's high part, low part and scales, if they are computed once in
    advance; else ()."""
    triangle: Node | None = None
    """The node of triu or tril that is the only reader of the product; None without one. Tiles
    outside of the triangle are not computed."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        return (self.node, *self.epilogue, *([self.triangle] if self.triangle else []))

    @property
    def kept(self) -> tuple[str, int]:
        """(function, diagonal) of `triangle`, such as ("triu", 1); ("", 0) without one."""
        match = TRIANGLE.fullmatch(self.triangle.op) if self.triangle else None
        return (match[1], int(match[2] or 0)) if match else ("", 0)

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that the kernel reads, by name, in order of first use."""
        bias = [self.bias] if self.bias is not None else []
        read = [self.left, self.right, *bias, *self.reads.values()]
        types = ("float16", "float16", "float32")
        return {m.tensor: m.dtype for m in read} | dict(zip(self.parts, types, strict=False))


def with_products(
    steps: Sequence[Step], graph: Graph, target: Target, keep: frozenset[str], split: bool = True
) -> tuple[Step | Product, ...]:
    """Return the steps with each qualifying product, and the fused group that becomes its epilogue,
    replaced by one `Product`.

    Products whose origin is in `keep` stay library calls. `split`: operands of float32 products may
    be split before the product.
    """
    made = partial(_product, graph=graph, target=target if split else None)
    found: dict[str, Product] = {}
    absorbed: set[int] = set()
    for step in steps:
        if not isinstance(step, Node) or step.origin in keep or not _qualifies(step, target):
            continue
        views, group = _reader_through_views(step, steps, graph)
        if id(group) in absorbed:  # both products of a gate are read by one group
            group = None
        product = made(step, group, views) if group is not None else None
        if product is None:
            product, group = made(step, None), None
            product = _with_triangle(product, graph) if product is not None else None
        if product is not None and _may_gain(product, graph, target):
            found[step.name] = product
            absorbed |= {id(group)} if group is not None else set()
    return _placed(steps, found, absorbed)


def _with_triangle(product: Product, graph: Graph) -> Product:
    """Return the product with its reader added as `triangle`, if its only reader is a call of triu
    or tril."""
    node = product.node
    readers = graph.users()[node.name]
    if node.name in graph.outputs or len(readers) != 1 or len(node.shape) > 2:
        return product
    (reader,) = readers
    if reader.kind is not Kind.LIBRARY or not TRIANGLE.fullmatch(reader.op):
        return product
    places: dict[str, tuple[int, ...]] = {node.name: (), reader.name: ()}
    return replace(product, triangle=reader, outputs=(reader.name,), places=places)


def _placed(
    steps: Sequence[Step], found: dict[str, Product], absorbed: set[int]
) -> tuple[Step | Product, ...]:
    """Return the steps with each product at the position of its epilogue, where all operands have
    been computed."""
    by_output = {name: product for product in found.values() for name in product.outputs}
    result: list[Step | Product] = []
    for step in steps:
        if isinstance(step, Group):
            result.append(by_output[step.outputs[0]] if id(step) in absorbed else step)
        elif step.name not in found:
            result.append(by_output.get(step.name, step))
        elif not found[step.name].epilogue and not found[step.name].triangle:
            result.append(found[step.name])
    return tuple(result)


def _qualifies(node: Node, target: Target) -> bool:
    if node.kind is not Kind.LIBRARY or not node.op.startswith(CALLS) or not node.contiguous:
        return False
    if node.dtype == "float32":
        return target.capability in SPLIT_CAPABILITIES and not target.tf32
    return target.capability >= (8, 0) and node.dtype in ("bfloat16", "float16")


def _may_gain(product: Product, graph: Graph, target: Target) -> bool:
    rows, columns, depth, batch = product.rows, product.columns, product.depth, product.batch
    if product.node.dtype == "float32":
        return is_large(rows, columns, depth, target, batch)
    if batch * rows * columns * depth < LEAST_OPERATIONS:
        return False
    if product.triangle or not (product.epilogue and batch == 1 and depth <= MOST_DEPTH):
        return product.triangle is not None
    read = dict.fromkeys(matrix.tensor for matrix in product.reads.values())
    moved = [product.node, *(graph.node(name) for name in (*product.outputs, *read))]
    return epilogue_pays(rows, columns, depth, moved, target)


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


def only_reader(node: Node, steps: Sequence[Any], graph: Graph) -> Group | None:
    """Return the fused group of elementwise nodes that is the only reader of `node` and has its
    size; None if there is none."""
    if node.name in graph.outputs:
        return None
    readers = {user.name for user in graph.users()[node.name]}
    for step in steps:
        if isinstance(step, Group) and readers & set(step.places):
            elementwise = step.family == "streaming" and not step.reduced
            whole = readers <= set(step.places) and elementwise
            return step if whole and step.size == node.size else None
    return None


def _reader_through_views(
    node: Node, steps: Sequence[Any], graph: Graph
) -> tuple[tuple[Node, ...], Group | None]:
    """Return (views, group): the `only_reader` of `node`, or of the last of the views through which
    alone it is read."""
    views: tuple[Node, ...] = ()
    users = graph.users()
    while (group := only_reader(node, steps, graph)) is None:
        readers = users[node.name]
        if node.name in graph.outputs or len(readers) != 1 or readers[0].kind is not Kind.VIEW:
            return (), None
        node = readers[0]
        views += (node,)
    return views, group


def _product(
    node: Node,
    group: Group | None,
    views: tuple[Node, ...] = (),
    *,
    graph: Graph,
    target: Target | None,
) -> Product | None:
    """Return the product with `group` as its epilogue (None: without one); None if the kernel
    cannot be generated.

    It cannot if Triton has no expression for an operator of the group, a value of the group has
    other columns, or a tensor has no single row and column stride. The operands are split before
    the product if that is faster on `target`. `views` are views of the product that the group
    reads.
    """
    nodes = (*views, *group.nodes) if group is not None else ()
    inner = {node.name, *(n.name for n in nodes)}
    outputs = group.outputs if group is not None else (node.name,)
    batch = batch_of(graph, node)
    if not 0 < batch <= MOST_BATCH:
        return None
    if not all(map(_has_expression, nodes)) or not _have_columns_of(node, nodes, batch):
        return None
    if any(graph.node(name).size != node.size for name in outputs):
        return None
    columns = node.shape[-1]
    depth = graph.node(str(node.args[0])).shape[-1]
    try:
        left, right = _operands(graph, node, batch > 1)
        bias = [matrix_of(graph, str(name), node.shape) for name in node.args[2:]]
        reads = {
            (n.name, arg): matrix_of(
                graph, arg, n.shape if n.size == node.size else node.shape, batch > 1
            )
            for n in nodes
            for arg in n.inputs
            if arg not in inner
        }
    except NestError:
        return None
    adjacent = left.column == right.column == 1
    rows = math.prod(node.shape) // (batch * columns)
    known = {n.name for n in graph.nodes}
    parts = tuple(name for name in parts_of(node) if name in known)
    float32 = node.dtype == "float32"
    split = (
        float32
        and target is not None
        and splits(rows, columns, depth, target, batch, prepared=bool(parts))
    )
    if not adjacent and not split and (float32 or {left.column, left.row}.isdisjoint({1})):
        return None
    places: dict[str, tuple[int, ...]] = dict.fromkeys(inner, ())
    return Product(
        node, rows, columns, depth, left, right, bias[0] if bias else None, nodes, reads, outputs,
        places, batch, split, parts if split else (),
    )  # fmt: skip


def parts_of(node: Node) -> tuple[str, str, str]:
    """Return the names of the nodes with the high part, the low part and the scales of a product's
    weight."""
    return f"{node.name}_right_high", f"{node.name}_right_low", f"{node.name}_right_scale"


def batch_of(graph: Graph, node: Node) -> int:
    """Return the number of products in a call (1: no batch); 0 if batches broadcast or an operand
    is a vector."""
    left, right = (graph.node(str(arg)) for arg in node.args[:2])
    if len(right.shape) == 2:
        return 1 if len(left.shape) >= 2 else 0
    same = left.shape[:-2] == right.shape[:-2]
    return math.prod(left.shape[:-2]) if same and len(left.shape) > 2 else 0


def _operands(graph: Graph, node: Node, batched: bool) -> tuple[Matrix, Matrix]:
    """Return (left operand, right operand); the right one has one row for each column of the
    result.

    Raises NestError for an operand whose rows or columns have no single stride.
    """
    left, right = (graph.node(str(arg)) for arg in node.args[:2])
    depth, columns = left.shape[-1], node.shape[-1]
    rows = matrix_of(graph, left.name, (*node.shape[:-1], depth), batched)
    if node.op.startswith("F.linear("):
        return rows, matrix_of(graph, right.name, (columns, depth))
    found = matrix_of(graph, right.name, right.shape, batched)
    return rows, replace(found, row=found.column, column=found.row)


def _has_expression(node: Node) -> bool:
    """Return True for an operator that Triton can compute, and for a view."""
    return node.kind is Kind.VIEW or (node.kind is Kind.POINTWISE and node.op in EXPRESSIONS)


def _have_columns_of(product: Node, nodes: Sequence[Node], batch: int) -> bool:
    """Return True if the values of a product's group lie in the rows and columns of the product.

    Views may divide the rows of a single product, unless the group also computes values of fewer
    elements, which are broadcast.
    """
    whole = [n.shape for n in nodes if n.size == product.size]
    if all(shape == product.shape for shape in whole):
        return all(n.size == product.size or n.kind is not Kind.VIEW for n in nodes)
    columns = product.shape[-1]
    return batch == 1 and len(whole) == len(nodes) and all(s[-1:] == (columns,) for s in whole)


def matrix_of(graph: Graph, name: str, shape: Shape, batched: bool = False) -> Matrix:
    """Return the row and column strides of tensor `name`, broadcast to `shape`.

    The last dimension is the columns; all dimensions before it together are the rows. `batched`:
    only the last but one is the rows, and those before it are the batch. Raises NestError if
    dimensions that form one index have no common stride.
    """
    node = graph.node(name)
    if node.kind in (Kind.WINDOW, Kind.INSIDE, Kind.GATHER):
        raise NestError(f"{name} is read under a condition")
    base, strides, offset = storage(graph, node)
    padded = (0,) * (len(shape) - len(node.shape)) + tuple(
        stride if extent > 1 else 0 for stride, extent in zip(strides, node.shape, strict=True)
    )
    if batched:
        sample = _common(name, padded[:-2], shape[:-2])
        return Matrix(base.name, base.dtype, padded[-2], padded[-1], offset, sample)
    row = _common(name, padded[:-1], shape[:-1])
    return Matrix(base.name, base.dtype, row, padded[-1], offset)


def _common(name: str, strides: Shape, shape: Shape) -> int:
    """Return the single stride of a tensor along dimensions that are flattened to one index. Raises
    NestError if there is none."""
    steps = contiguous_strides(shape)
    pairs = [(s, t) for s, t, n in zip(strides, steps, shape, strict=True) if n > 1]
    stride = pairs[-1][0] // pairs[-1][1] if pairs else 0
    if any(s != stride * step for s, step in pairs):
        raise NestError(f"{name} has no single stride from row to row")
    return stride
