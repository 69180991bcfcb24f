"""Lower sums and extremes of rows by index: `index_add`, `index_reduce`, `scatter_add`,
`scatter_reduce`.

Few indices for each row become choices by index (`writes`). Other cases are covered on the CPU
only, with one index for each row of the source and float32 elements.
New tensors filled with one number (`zeros`, `ones_like`) are replaced by that number.
"""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.graph import FLOATS, Kind, Node, Operand, Scatter
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    operand,
    operator_name,
    rule,
    shape_of,
    value_of,
)
from cuagent.expert.rules.writes import written, written_by_row

REDUCTIONS = {"sum": "sum", "amax": "amax", "amin": "amin"}
FILLS = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0} | {
    "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0
}  # fmt: skip
VALUES = {"full": 1, "full_like": 1, "new_full": 2}
"""Position of the fill value in the arguments of operators that create a filled tensor."""
COPIES = ("clone", "expand", "view", "reshape", "unsqueeze", "_to_copy", "alias", "detach")


@rule("index_add")
def index_add(low: Lowering, fx: Any) -> str | None:
    base, dim, index, source = fx.args[:4]
    if argument(fx, 4, "alpha", 1) != 1 or len(shape_of(index)) != 1:
        return None
    return _scatter(low, fx, base, dim, index, source, "sum", wraps=False)


@rule("index_reduce")
def index_reduce(low: Lowering, fx: Any) -> str | None:
    """Lower extremes of rows; products and means stay with torch."""
    base, dim, index, source, name = fx.args[:5]
    included = argument(fx, 5, "include_self", True)
    if name not in ("amax", "amin") or not included or len(shape_of(index)) != 1:
        return None
    return _scatter(low, fx, base, dim, index, source, name, wraps=False)


@rule("scatter_add", "scatter_reduce")
def scatter_reduce(low: Lowering, fx: Any) -> str | None:
    base, dim, index, source = fx.args[:4]
    name = argument(fx, 4, "reduce", "sum") if "reduce" in str(fx.target) else "sum"
    included = argument(fx, 5, "include_self", True)
    if name not in REDUCTIONS or not included or shape_of(index) != shape_of(source):
        return None
    first, rows = filled(low, base), filled(low, source)
    if first is not None and rows is not None:
        few = written(low, fx, first, dim, index, rows, REDUCTIONS[name])
        if few is not None:
            return few
    return _scatter(low, fx, base, dim, index, source, REDUCTIONS[name], wraps=False)


@rule("index_put")
def index_put(low: Lowering, fx: Any) -> str | None:
    """Lower `x[index] += source` with one one-dimensional index tensor, or with two of which the
    first is all rows in order."""
    base, indices, source = fx.args[:3]
    first = filled(low, base)
    if not argument(fx, 3, "accumulate", False) or first is None:
        return None
    if by_row := written_by_row(low, fx, first, list(indices), source):
        return by_row
    if len(indices) != 1 or indices[0] is None:
        return None
    rows = shape_of(indices[0])
    if len(rows) != 1 or shape_of(source) != (*rows, *shape_of(base)[1:]):
        return None
    return _scatter(low, fx, base, 0, indices[0], source, "sum", wraps=True)


def _scatter(
    low: Lowering, fx: Any, base: Any, dim: int, index: Any, source: Any, op: str, *, wraps: bool
) -> str | None:
    shape, given = shape_of(fx), shape_of(source)
    plain = all(dtype_of(x) == "float32" for x in (fx, base, source))
    on_cpu = fx.meta["val"].device.type == "cpu"
    if not plain or not on_cpu or not shape or dtype_of(index) not in ("int64", "int32"):
        return None
    dim %= len(shape)
    places = operand(low, index)
    if shape[:dim] + shape[dim + 1 :] != given[:dim] + given[dim + 1 :] or dim:
        return None
    first, rows = filled(low, base), filled(low, source)
    if not isinstance(places, str) or first is None or rows is None:
        return None
    if not _is_by_row(low.by_name[places]):
        return None
    spec = Scatter(shape[dim], given, wraps)
    args = (first, places, rows)
    name = low.unique_name("")
    return low.add(
        Node(name, Kind.SCATTER, op, args, shape, "float32", (dim,), low.origin, spec=spec)
    )


def _is_by_row(index: Node) -> bool:
    """Return True if all elements of a source row have the same index."""
    if math.prod(index.shape[1:]) == 1:
        return index.kind is not Kind.GATHER
    return index.kind is Kind.STRIDED and not any(index.strides[1:])


def filled(low: Lowering, fx: Any) -> Operand | None:
    """Return the number that fills a newly created tensor; for other tensors the node's name."""
    import torch

    new = fx
    while operator_name(new) in COPIES and hasattr(new.args[0], "meta"):
        new = new.args[0]
    name, dtype = operator_name(new), dtype_of(new)
    if dtype not in FLOATS or dtype != dtype_of(fx):
        return operand(low, fx)
    if name in FILLS:
        return FILLS[name]
    value = new.args[VALUES[name]] if name in VALUES else None
    known = isinstance(value, int | float)
    return float(torch.tensor(value, dtype=value_of(new).dtype)) if known else operand(low, fx)
