"""Describe a value that views and copies of another value consist of, by factors of its indices.

A reshape divides and joins dimensions, a permutation exchanges them. Each dimension of such a value
is a product of factors of the source's dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.graph.lowering import shape_of

VIEWS = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"}
COPIES = {"clone", "contiguous"}
FOLLOWED = {*VIEWS, *COPIES, "transpose", "permute", "select"}
"""Operators whose results have chains (`followed`)."""


@dataclass(frozen=True)
class Factor:
    """A factor of the index along a dimension of a source: the index is the sum of step x i."""

    dim: int
    step: int
    size: int


Dims = tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True)
class Chain:
    """A value that views of a source consist of: the factors of each dimension, outermost first,
    and the factors that a selection fixed."""

    source: Any
    dims: Dims
    fixed: tuple[tuple[Factor, int], ...] = ()


def whole_chain(node: Any) -> Chain:
    """Return the chain of a value that is its own source."""
    dims = tuple((Factor(d, 1, n),) if n > 1 else () for d, n in enumerate(shape_of(node)))
    return Chain(node, dims)


def emitted(edit: Edit, chain: Chain) -> Any:
    """Add the views of a source that a chain describes; return the last one."""
    import torch

    aten = torch.ops.aten
    fixed = dict(chain.fixed)
    free = [f for dim in chain.dims for f in dim]
    factors = sorted([*free, *fixed], key=lambda f: (f.dim, -f.step))
    node = chain.source
    if shape_of(node) != (wide := tuple(f.size for f in factors)):
        node = edit.call(aten.view.default, (node, list(wide)))
    for k in reversed([k for k, f in enumerate(factors) if f in fixed]):
        node = edit.call(aten.select.int, (node, k, fixed[factors.pop(k)]))
    order = [factors.index(f) for f in free]
    if order != sorted(order):
        node = edit.call(aten.permute.default, (node, order))
    shape = tuple(math.prod(f.size for f in dim) for dim in chain.dims)
    if shape_of(node) != shape:
        node = edit.call(aten.reshape.default, (node, list(shape)))
    return node


def followed(node: Any, chain: Chain) -> Chain | None:
    """Return the chain of a view or copy of a value with the given chain; None if it has none."""
    dims, name, rank = chain.dims, called(node), len(chain.dims)
    match name:
        case "transpose":
            a, b = (d % rank for d in node.args[1:3])
            order = list(range(rank))
            order[a], order[b] = b, a
            return Chain(chain.source, tuple(dims[d] for d in order), chain.fixed)
        case "permute":
            return Chain(chain.source, tuple(dims[d % rank] for d in node.args[1]), chain.fixed)
        case "select":
            dim, index = node.args[1] % rank, node.args[2]
            rest = (*dims[:dim], *dims[dim + 1 :])
            if not dims[dim]:
                return Chain(chain.source, rest, chain.fixed)
            if len(dims[dim]) > 1:
                return None
            (factor,) = dims[dim]
            return Chain(chain.source, rest, (*chain.fixed, (factor, index % factor.size)))
        case "clone" | "contiguous":
            return chain
    shaped = reshaped([f for dim in dims for f in dim], shape_of(node))
    return None if shaped is None else Chain(chain.source, shaped, chain.fixed)


def reshaped(factors: list[Factor], shape: Sequence[int]) -> Dims | None:
    """Return the factors of each dimension of a view; None if a factor spans two dimensions and
    does not split."""
    dims: list[tuple[Factor, ...]] = []
    waiting = factors[::-1]
    for size in shape:
        left, own = size, []
        while left > 1:
            factor = waiting.pop()
            if left % factor.size == 0:
                own.append(factor)
                left //= factor.size
            elif factor.size % left == 0:
                inner = factor.size // left
                own.append(Factor(factor.dim, factor.step * inner, left))
                waiting.append(Factor(factor.dim, factor.step, inner))
                left = 1
            else:
                return None
        dims.append(tuple(own))
    return tuple(dims)
