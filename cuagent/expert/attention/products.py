"""Recognize products of batches of matrices in the forms in which users write them.

`matmul`, `bmm`, `mm`, `baddbmm` and `einsum` with one summed letter are described by operands whose
dimensions have one order: the batch, then rows, then the summed dimension.
Not covered: batches that broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuagent.expert.capture.editing import called
from cuagent.expert.graph.lowering import argument, shape_of

PLAIN = ("matmul", "bmm", "mm")


@dataclass(frozen=True)
class Operand:
    """A tensor operand of a product, with the order in which the product reads its dimensions."""

    node: Any
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions in the order of the product."""
        shape = shape_of(self.node)
        return tuple(shape[d] for d in self.order)


@dataclass(frozen=True)
class BatchedProduct:
    """A product `left` (batch, rows, depth) times `right` (batch, columns, depth), times `scale`,
    plus a bias."""

    left: Operand
    right: Operand
    order: tuple[int, ...]
    """Index in (*batch, rows, columns) of each dimension of the result."""
    scale: float = 1.0
    bias: Any = None


def batched_product(node: Any) -> BatchedProduct | None:
    """Return the batched product that an fx node computes; None if the node has no covered form."""
    if node.op != "call_function":
        return None
    name = called(node)
    if name in PLAIN:
        return _plain(*node.args[:2])
    if name == "baddbmm":
        bias, left, right = node.args[:3]
        beta, alpha = argument(node, 3, "beta", 1), argument(node, 4, "alpha", 1)
        found = _plain(left, right)
        if found is None or beta not in (0, 1):
            return None
        shift = bias if beta else None
        return BatchedProduct(found.left, found.right, found.order, float(alpha), shift)
    if name == "einsum" and len(node.args[1]) == 2:
        return _einsum(str(node.args[0]), *node.args[1])
    return None


def _plain(left: Any, right: Any) -> BatchedProduct | None:
    a, b = shape_of(left), shape_of(right)
    rank = len(a)
    if rank < 2 or len(b) != rank or a[:-2] != b[:-2]:
        return None
    straight = tuple(range(rank))
    turned = (*straight[:-2], rank - 1, rank - 2)
    return BatchedProduct(Operand(left, straight), Operand(right, turned), straight)


def _einsum(equation: str, first: Any, second: Any) -> BatchedProduct | None:
    """Return the product that an einsum of two operands computes; None if it has no covered
    form."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    left, _, right = terms.partition(",")
    words = (left, right, result)
    if not arrow or "." in equation or any(len(set(word)) != len(word) for word in words):
        return None
    batch = [c for c in result if c in left and c in right]
    summed = [c for c in left if c in right and c not in result]
    rows = [c for c in left if c in result and c not in right]
    columns = [c for c in right if c in result and c not in left]
    if (len(summed), len(rows), len(columns)) != (1, 1, 1):
        return None
    if {*batch, *summed, *rows} != set(left) or {*batch, *summed, *columns} != set(right):
        return None
    if result[-1] == rows[0]:
        left, right, first, second = right, left, second, first
        rows, columns = columns, rows
    whole = [*batch, *rows, *columns]
    return BatchedProduct(
        Operand(first, tuple(left.index(c) for c in [*batch, *rows, *summed])),
        Operand(second, tuple(right.index(c) for c in [*batch, *columns, *summed])),
        tuple(whole.index(c) for c in result),
    )
