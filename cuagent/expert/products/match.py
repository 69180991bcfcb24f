"""Find products that a generated kernel may compute faster than the library.

A product qualifies with its operands in rows of K adjacent elements, as the weight of a linear
layer lies. The elementwise group that alone reads the product becomes the epilogue of its kernel,
if each tensor that the group reads has one row stride and one column stride over the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import Graph, Kind, Node, Shape, contiguous_strides
from cuagent.expert.products.expressions import EXPRESSIONS
from cuagent.expert.streaming.fuse import Group, Step
from cuagent.expert.streaming.nest import NestError, storage

SPLIT_CAPABILITIES = {(8, 0), (9, 0), (10, 0), (10, 3)}
"""Compute capabilities with tensor cores for TF32 that are at least six times as fast as float32
arithmetic. Elsewhere three TF32 products are no faster than one of float32."""
LEAST_OPERATIONS = 1 << 28
"""Multiplications of a product below which the launch decides, not the arithmetic."""
MOST_DEPTH = 4096
"""K of a half-precision product beyond which an epilogue saves less than the library's lead."""


@dataclass(frozen=True)
class Matrix:
    """A tensor in the index space of a product: element `offset + m * row + n * column`."""

    tensor: str
    """Node that owns the memory."""
    dtype: str
    row: int
    column: int
    offset: int


@dataclass(frozen=True)
class Product:
    """A product of M x K and N x K operands, with the group behind it as its epilogue."""

    node: Node
    rows: int
    columns: int
    depth: int
    left: Matrix
    """Row stride and stride along K."""
    right: Matrix
    """Stride from column to column of the result, and along K."""
    bias: Matrix | None
    epilogue: tuple[Node, ...]
    """Elementwise nodes behind the product, in order."""
    reads: dict[tuple[str, str], Matrix]
    """Tensors read by the epilogue, by reader and argument."""
    outputs: tuple[str, ...]
    places: dict[str, tuple[int, ...]]
    """Names of the computed nodes, as in a group."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the kernel computes."""
        return (self.node, *self.epilogue)

    @property
    def tensors(self) -> dict[str, str]:
        """dtype of each tensor that is read, in order of first use."""
        bias = [self.bias] if self.bias is not None else []
        read = [self.left, self.right, *bias, *self.reads.values()]
        return {matrix.tensor: matrix.dtype for matrix in read}


def with_products(
    steps: Sequence[Step], graph: Graph, target: Target, keep: frozenset[str]
) -> tuple[Step | Product, ...]:
    """Replace each qualifying product, and its epilogue group, by one step.

    Products whose captured operator is in `keep` stay library calls.
    """
    found: dict[str, Product] = {}
    absorbed: set[int] = set()
    for step in steps:
        if not isinstance(step, Node) or step.origin in keep or not _qualifies(step, target):
            continue
        group = only_reader(step, steps, graph)
        product = _product(step, group, graph) if group is not None else None
        if product is None:
            product, group = _product(step, None, graph), None
        if product is not None and _may_gain(product):
            found[step.name] = product
            absorbed |= {id(group)} if group is not None else set()
    return _placed(steps, found, absorbed)


def _placed(
    steps: Sequence[Step], found: dict[str, Product], absorbed: set[int]
) -> tuple[Step | Product, ...]:
    """Return the steps with each product at the place of its epilogue, where all operands exist."""
    by_output = {name: product for product in found.values() for name in product.outputs}
    result: list[Step | Product] = []
    for step in steps:
        if isinstance(step, Group):
            result.append(by_output[step.outputs[0]] if id(step) in absorbed else step)
        elif step.name not in found:
            result.append(step)
        elif not found[step.name].epilogue:
            result.append(found[step.name])
    return tuple(result)


def _qualifies(node: Node, target: Target) -> bool:
    if node.kind is not Kind.LIBRARY or not node.op.startswith("F.linear(") or not node.contiguous:
        return False
    if node.dtype == "float32":
        return target.capability in SPLIT_CAPABILITIES and not target.tf32
    return target.capability >= (8, 0) and node.dtype in ("bfloat16", "float16")


def _may_gain(product: Product) -> bool:
    operations = product.rows * product.columns * product.depth
    if operations < LEAST_OPERATIONS:
        return False
    if product.node.dtype == "float32":
        return True
    return bool(product.epilogue) and product.depth <= MOST_DEPTH


def only_reader(node: Node, steps: Sequence[Any], graph: Graph) -> Group | None:
    """Return the group that alone reads a product, if it has no reduction."""
    if node.name in graph.outputs:
        return None
    readers = {user.name for user in graph.users()[node.name]}
    for step in steps:
        if isinstance(step, Group) and readers & set(step.places):
            elementwise = step.family == "streaming" and not step.reduced
            whole = readers <= set(step.places) and elementwise
            return step if whole and step.size == node.size else None
    return None


def _product(node: Node, group: Group | None, graph: Graph) -> Product | None:
    """Return the product with `group` as its epilogue; without one if `group` is None.

    Return None if Triton has no expression for an operator of the group, an output has another
    shape, or a tensor has no single row and column stride.
    """
    left_name, right_name, *bias_names = (str(arg) for arg in node.args)
    rows, columns = math.prod(node.shape[:-1]), node.shape[-1]
    depth = graph.node(right_name).shape[1]
    nodes = group.nodes if group is not None else ()
    inner = {node.name, *(n.name for n in nodes)}
    outputs = group.outputs if group is not None else (node.name,)
    if any(n.kind is not Kind.POINTWISE or n.op not in EXPRESSIONS for n in nodes):
        return None
    if any(graph.node(name).shape != node.shape for name in outputs):
        return None
    try:
        left = matrix_of(graph, left_name, (*node.shape[:-1], depth))
        right = matrix_of(graph, right_name, (columns, depth))
        bias = [matrix_of(graph, name, node.shape) for name in bias_names]
        reads = {
            (n.name, arg): matrix_of(graph, arg, node.shape)
            for n in nodes
            for arg in n.inputs
            if arg not in inner
        }
    except NestError:
        return None
    if left.column != 1 or right.column != 1:
        return None
    places: dict[str, tuple[int, ...]] = dict.fromkeys(inner, ())
    return Product(
        node, rows, columns, depth, left, right, bias[0] if bias else None, nodes, reads, outputs,
        places,
    )  # fmt: skip


def matrix_of(graph: Graph, name: str, shape: Shape) -> Matrix:
    """Return a tensor, broadcast to `shape`, as rows and columns of the flattened shape.

    Raises NestError if the leading dimensions have no common row stride.
    """
    node = graph.node(name)
    if node.kind in (Kind.WINDOW, Kind.INSIDE, Kind.GATHER):
        raise NestError(f"{name} is read under a condition")
    base, strides, offset = storage(graph, node)
    padded = (0,) * (len(shape) - len(node.shape)) + tuple(
        stride if extent > 1 else 0 for stride, extent in zip(strides, node.shape, strict=True)
    )
    row, steps = 0, contiguous_strides(shape[:-1])
    leading = [(s, t) for s, t, n in zip(padded, steps, shape[:-1], strict=False) if n > 1]
    if leading:
        row = leading[-1][0] // leading[-1][1]
    if any(stride != row * step for stride, step in leading):
        raise NestError(f"{name} has no single stride from row to row")
    return Matrix(base.name, base.dtype, row, padded[-1], offset)
