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
from cuagent.expert.products.tiles import occupied
from cuagent.expert.streaming.group import Group, Step
from cuagent.expert.streaming.nest import NestError, storage

SPLIT_CAPABILITIES = {(8, 0), (9, 0), (10, 0), (10, 3)}
"""Compute capabilities with tensor cores for TF32 that are at least six times as fast as float32
arithmetic. Elsewhere three TF32 products are no faster than one of float32."""
SPLIT_BEFORE = {(9, 0), (10, 0), (10, 3)}
"""Compute capabilities for which operands may be split beforehand: their shared memory holds three
stages of both parts of the operands."""
LEAST_SPLIT_OPERATIONS = 1 << 30
"""Fewest multiplications of a product whose operands are split: for fewer, the launches that split
them cost too much. On an H200 1024 x 1024 x 1024 took 0.033 ms and cuBLAS 0.060, 512 x 512 x 2048
took 0.034 and 0.036."""
LEAST_SPLIT_REUSE, LEAST_SPLIT_DEPTH = 200, 256
"""Least rows x columns / (rows + columns), and least K, from which split operands are faster: an
estimate from the rates of both products and the bytes that a split moves."""
LEAST_OPERATIONS = 1 << 28
"""Fewest multiplications of a product whose time the arithmetic decides, and not the launch."""
CALLS = ("F.linear(", "torch.matmul({0}, {1})", "torch.mm({0}, {1})", "torch.bmm({0}, {1})")
TRIANGLE = re.compile(r"torch\.ops\.aten\.(tri[ul])\.default\(\{0\}(?:, (-?\d+))?\)")
MOST_BATCH = 65535
"""Largest second dimension of a grid."""
LONG_DEPTH, LEAST_OCCUPIED = 8192, 0.5
"""From this K on, cuBLAS gains by splitting K if tiles occupy a smaller fraction of the processors
than LEAST_OCCUPIED. On an H200 a split kernel of our own took 0.50 ms for 256 x 256 x 131072,
cuBLAS 0.34."""
MOST_DEPTH = 4096
"""Largest K of a half-precision product with an epilogue. Beyond it the library's faster product
saves more than the epilogue does."""


@dataclass(frozen=True)
class Matrix:
    """The position of a tensor's elements for the indices (batch, m, n) of a product.

    An element is at `offset + batch * sample + m * row + n * column`, counted in elements.
    """

    tensor: str
    """Node that owns the memory."""
    dtype: str
    row: int
    column: int
    offset: int
    sample: int = 0


@dataclass(frozen=True)
class Product:
    """A product of M x K and N x K operands, with the group behind it as its epilogue.

    `rows`, `columns` and `depth` are M, N and K.
    """

    node: Node
    rows: int
    columns: int
    depth: int
    left: Matrix
    """Left operand: its strides along the rows of the result, and along K."""
    right: Matrix
    """Right operand: its strides along the columns of the result, and along K."""
    bias: Matrix | None
    epilogue: tuple[Node, ...]
    """Elementwise nodes behind the product, in order."""
    reads: dict[tuple[str, str], Matrix]
    """Tensors that the epilogue reads, by (reader, argument)."""
    outputs: tuple[str, ...]
    places: dict[str, tuple[int, ...]]
    """Names of the computed nodes as keys, as in `Group.places`; the values are empty."""
    batch: int = 1
    """Number of products with operands of their own."""
    split: bool = False
    """True if both float32 operands are split into two float16 parts before the product."""
    parts: tuple[str, ...] = ()
    """Names of the right operand's two parts and scales, if they were computed once."""
    triangle: Node | None = None
    """The call of triu or tril, if it alone reads the product. Tiles without a kept element are not
    computed."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        return (self.node, *self.epilogue, *([self.triangle] if self.triangle else []))

    @property
    def kept(self) -> tuple[str, int]:
        """The function ("triu" or "tril") and the diagonal of `triangle`; ("", 0) without one."""
        match = TRIANGLE.fullmatch(self.triangle.op) if self.triangle else None
        return (match[1], int(match[2] or 0)) if match else ("", 0)

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that is read, in order of first use."""
        bias = [self.bias] if self.bias is not None else []
        read = [self.left, self.right, *bias, *self.reads.values()]
        types = ("float16", "float16", "float32")
        return {m.tensor: m.dtype for m in read} | dict(zip(self.parts, types, strict=False))


def with_products(
    steps: Sequence[Step], graph: Graph, target: Target, keep: frozenset[str], split: bool = True
) -> tuple[Step | Product, ...]:
    """Replace each qualifying product, and its epilogue group, by one step.

    Products whose captured operator is in `keep` stay library calls. Operands of float32 products
    are split beforehand only with `split`.
    """
    made = partial(_product, graph=graph, target=target if split else None)
    found: dict[str, Product] = {}
    absorbed: set[int] = set()
    for step in steps:
        if not isinstance(step, Node) or step.origin in keep or not _qualifies(step, target):
            continue
        group = only_reader(step, steps, graph)
        if id(group) in absorbed:  # both products of a gate are read by one group
            group = None
        product = made(step, group) if group is not None else None
        if product is None:
            product, group = made(step, None), None
            product = _with_triangle(product, graph) if product is not None else None
        if product is not None and _may_gain(product, target):
            found[step.name] = product
            absorbed |= {id(group)} if group is not None else set()
    return _placed(steps, found, absorbed)


def _with_triangle(product: Product, graph: Graph) -> Product:
    """Return the product joined with a call of triu or tril, if that is its only reader."""
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
    """Return the steps with each product at its epilogue's position, where all operands exist."""
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


def _may_gain(product: Product, target: Target) -> bool:
    rows, columns, depth, batch = product.rows, product.columns, product.depth, product.batch
    if product.node.dtype == "float32":
        return is_large(rows, columns, depth, target, batch)
    if batch * rows * columns * depth < LEAST_OPERATIONS:
        return False
    return bool(product.triangle or (product.epilogue and batch == 1 and depth <= MOST_DEPTH))


def splits(
    rows: int, columns: int, depth: int, target: Target, batch: int = 1, *, prepared: bool = False
) -> bool:
    """Return True if the operands of a float32 product are split into float16 parts beforehand.

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
    """Return True if a float32 product has enough arithmetic and, with a long K, enough tiles."""
    if batch * rows * columns * depth < LEAST_OPERATIONS:
        return False
    part = occupied(rows, columns, "float32", target.processors, batch)
    return depth < LONG_DEPTH or part >= LEAST_OCCUPIED


def only_reader(node: Node, steps: Sequence[Any], graph: Graph) -> Group | None:
    """Return the elementwise group of `node`'s size that is its only reader; None if none is."""
    if node.name in graph.outputs:
        return None
    readers = {user.name for user in graph.users()[node.name]}
    for step in steps:
        if isinstance(step, Group) and readers & set(step.places):
            elementwise = step.family == "streaming" and not step.reduced
            whole = readers <= set(step.places) and elementwise
            return step if whole and step.size == node.size else None
    return None


def _product(
    node: Node, group: Group | None, graph: Graph, target: Target | None
) -> Product | None:
    """Return the product with `group` as its epilogue; without one if `group` is None.

    Its operands are split beforehand if that is faster on `target`.
    Return None if Triton has no expression for an operator of the group, an output has another
    shape, or a tensor has no single row and column stride.
    """
    nodes = group.nodes if group is not None else ()
    inner = {node.name, *(n.name for n in nodes)}
    outputs = group.outputs if group is not None else (node.name,)
    if any(n.kind is not Kind.POINTWISE or n.op not in EXPRESSIONS for n in nodes):
        return None
    if any(graph.node(name).shape != node.shape for name in outputs):
        return None
    batch = batch_of(graph, node)
    if not 0 < batch <= MOST_BATCH:
        return None
    columns = node.shape[-1]
    depth = graph.node(str(node.args[0])).shape[-1]
    try:
        left, right = _operands(graph, node, batch > 1)
        bias = [matrix_of(graph, str(name), node.shape) for name in node.args[2:]]
        reads = {
            (n.name, arg): matrix_of(graph, arg, node.shape, batch > 1)
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
    """Return the names of both parts and the scales of the weight of a product."""
    return f"{node.name}_right_high", f"{node.name}_right_low", f"{node.name}_right_scale"


def batch_of(graph: Graph, node: Node) -> int:
    """Return the number of products in a call; 0 if batches broadcast or an operand is a vector."""
    left, right = (graph.node(str(arg)) for arg in node.args[:2])
    if len(right.shape) == 2:
        return 1 if len(left.shape) >= 2 else 0
    same = left.shape[:-2] == right.shape[:-2]
    return math.prod(left.shape[:-2]) if same and len(left.shape) > 2 else 0


def _operands(graph: Graph, node: Node, batched: bool) -> tuple[Matrix, Matrix]:
    """Return the left operand, and the right one with a row for each column of the result.

    Raises NestError for an operand without single strides.
    """
    left, right = (graph.node(str(arg)) for arg in node.args[:2])
    depth, columns = left.shape[-1], node.shape[-1]
    rows = matrix_of(graph, left.name, (*node.shape[:-1], depth), batched)
    if node.op.startswith("F.linear("):
        return rows, matrix_of(graph, right.name, (columns, depth))
    found = matrix_of(graph, right.name, right.shape, batched)
    return rows, replace(found, row=found.column, column=found.row)


def matrix_of(graph: Graph, name: str, shape: Shape, batched: bool = False) -> Matrix:
    """Return the strides of a tensor, broadcast to `shape`, over rows and columns.

    The last dimension is the columns; all before it are the rows. If `batched` is True, only the
    last but one is the rows, and those before it are the batch. Raises NestError if dimensions that
    are counted together have no common stride.
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
    """Return the stride along the flattened dimensions. Raises NestError if there is none."""
    steps = contiguous_strides(shape)
    pairs = [(s, t) for s, t, n in zip(strides, steps, shape, strict=True) if n > 1]
    stride = pairs[-1][0] // pairs[-1][1] if pairs else 0
    if any(s != stride * step for s, step in pairs):
        raise NestError(f"{name} has no single stride from row to row")
    return stride
