"""Describe a matrix product that one kernel computes, and where its operands lie in memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from cuagent.expert.graph.graph import Graph, Kind, Node, Shape, contiguous_strides
from cuagent.expert.graph.storage import NestError, storage

TRIANGLE = re.compile(r"torch\.ops\.aten\.(tri[ul])\.default\(\{0\}(?:, (-?\d+))?\)")


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
    second: Product | None = None
    """Another product of the same left operand, which the epilogue alone reads: the other half of a
    gate. It has no epilogue of its own."""
    triangle: Node | None = None
    """The node of triu or tril that is the only reader of the product; None without one. Tiles
    outside of the triangle are not computed."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        second = self.second.nodes if self.second is not None else ()
        return (self.node, *second, *self.epilogue, *([self.triangle] if self.triangle else []))

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
        second = self.second.tensors if self.second is not None else {}
        own = {m.tensor: m.dtype for m in read} | dict(zip(self.parts, types, strict=False))
        return own | second


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
