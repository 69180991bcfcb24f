"""Lower writes at few indices of each row, such as a scatter with one index for each row, to
choices by index.

An element becomes the new value where its place equals the index, so no other tensor is stored or
copied. The gradients of `gather` and of `x[arange(n), index]` are examples. Not covered: dimensions
of more than `MAX_INDEX` elements. A write with an index out of range is left out; torch raises an
error there.
"""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.graph import INTEGERS, Kind, Node, Operand, Shape
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    rule,
    shape_of,
    target_of,
)
from cuagent.expert.rules.extremes import MAX_INDEX
from cuagent.expert.rules.views import narrowed, viewed

MAX_WRITES = 8
"""Largest number of indices along the dimension for which a write is lowered."""
JOINS = {"sum": "add", "amax": "maximum", "amin": "minimum"}
"""Elementwise operation of each reduction of a scatter."""
VIEWS = ("unsqueeze", "view", "reshape", "_unsafe_view", "expand", "alias", "detach")


@rule("scatter")
def scatter(low: Lowering, fx: Any) -> str | None:
    """Lower a scatter with few indices along its dimension. Of equal indices the last one takes
    effect."""
    x, source = operand(low, fx.args[0]), operand(low, fx.args[3])
    if x is None or source is None or "reduce" in fx.kwargs or len(fx.args) > 4:
        return None
    return written(low, fx, x, fx.args[1], fx.args[2], source)


def written(
    low: Lowering, fx: Any, x: Operand, dim: int, index: Any, source: Operand, reduction: str = ""
) -> str | None:
    """Return the node of `x` in which the elements at `index` along `dim` are those of `source`;
    None if this is not covered.

    With a reduction of `JOINS` the elements are combined with those of `x`.
    """
    places, shape, given = operand(low, index), shape_of(fx), shape_of(index)
    if not isinstance(places, str) or not shape or not floating(fx):
        return None
    dim %= len(shape)
    same = given[:dim] + given[dim + 1 :] == shape[:dim] + shape[dim + 1 :]
    if not same or not 0 < given[dim] <= MAX_WRITES or shape[dim] > MAX_INDEX:
        return None
    if isinstance(source, str) and low.shape(source) != given:
        return None
    order = along(low, dim, shape)
    value = x
    for k in range(given[dim]):
        at = low.pointwise("cast", narrowed(low, places, dim, k, k + 1), hint="at")
        here = low.pointwise("eq", at, order, hint="here", dtype="bool")
        new = narrowed(low, source, dim, k, k + 1) if isinstance(source, str) else source
        hint = "" if k == given[dim] - 1 else "written"
        value = _chosen(low, here, new, value, reduction, hint, dtype_of(fx))
    return str(value)


def _chosen(
    low: Lowering, here: str, new: Operand, old: Operand, reduction: str, hint: str, dtype: str
) -> str:
    """Return the node that is `new`, combined with `old` by the reduction, where `here` is true."""
    if reduction and (reduction, old) != ("sum", 0.0):
        new = low.pointwise(JOINS[reduction], old, new, hint="joined", dtype=dtype)
    return low.pointwise("where", here, new, old, hint=hint, dtype=dtype)


def written_by_row(
    low: Lowering, fx: Any, x: Operand, indices: list[Any], source: Any
) -> str | None:
    """Return the node of `x` in which `source` was added at `(arange(rows), index)`, as the
    gradient of that indexing has it; None if this is not covered.

    Negative indices count from the end.
    """
    shape, values = shape_of(fx), operand(low, source)
    if len(indices) != 2 or None in indices or len(shape) != 2 or not floating(fx):
        return None
    rows, columns = shape
    counted, index = indices
    whole = is_range(counted, rows) and dtype_of(index) in ("int64", "int32")
    if not whole or {shape_of(i) for i in indices} != {(rows,)} or columns > MAX_INDEX:
        return None
    if shape_of(source) not in ((rows,), ()) or not isinstance(places := operand(low, index), str):
        return None
    at = viewed(low, places, (rows, 1))
    new = values if low.shape(values or 0) == () else viewed(low, str(values), (rows, 1))
    if at is None or new is None:
        return None
    number = low.pointwise("cast", at, hint="number")
    negative = low.pointwise("lt", number, 0.0, hint="negative", dtype="bool")
    from_end = low.pointwise("add", number, columns, hint="from_end")
    at = low.pointwise("where", negative, from_end, number, hint="at")
    here = low.pointwise("eq", at, along(low, 1, shape), hint="here", dtype="bool")
    return _chosen(low, here, new, x, "sum", "", dtype_of(fx))


def along(low: Lowering, dim: int, shape: Shape) -> str:
    """Add a node with the index of each element along dimension `dim`; return its name."""
    extents = tuple(n if k == dim else 1 for k, n in enumerate(shape))
    name = low.unique_name("index")
    return low.add(Node(name, Kind.INDEX, "index", (), extents, dims=(dim,)))


def is_range(fx: Any, count: int) -> bool:
    """Return True for `arange(count)` of integers, which is 0, 1, 2, ..."""
    if target_of(fx) != "arange" or dtype_of(fx) not in INTEGERS or shape_of(fx) != (count,):
        return False
    form = str(fx.target).rpartition(".")[2]
    start = 0 if form == "default" else fx.args[0]
    step = argument(fx, 2, "step", 1) if form == "start_step" else 1
    return bool(start == 0 and step == 1)


def as_index(low: Lowering, value: Any) -> str | None:
    """Return a node with the index along one dimension, of which `value` is a view of an `arange`;
    None for any other value.

    A kernel then reads no memory for it.
    """
    fx = value
    while hasattr(fx, "meta") and target_of(fx) in VIEWS:
        fx = fx.args[0]
    if not hasattr(fx, "meta") or target_of(fx) != "arange":
        return None
    (count,), shape = shape_of(fx), shape_of(value)
    dims = [d for d, n in enumerate(shape) if n == count]
    if not 1 < count <= MAX_INDEX or not is_range(fx, count):
        return None
    if len(dims) != 1 or any(n != 1 for d, n in enumerate(shape) if d != dims[0]):
        return None
    return along(low, dims[0], shape)
