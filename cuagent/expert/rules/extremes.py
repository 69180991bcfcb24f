"""Lower argmax, argmin, topk of small k, and maxima and minima with their indices.

The index of an extreme is the smallest index at which the value equals the extreme or is NaN. So
the index of the first of equal values is returned, and NaN is the extreme if present, as in torch.
"""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    rule,
    target_of,
)
from cuagent.expert.rules.joins import within
from cuagent.expert.selections.groups import PLACES

MAX_INDEX = 1 << 24
"""Largest size of a dimension that is searched: float32 represents all integers up to this value
exactly."""
MOST_TOP = 8
"""Largest k of a topk that is lowered to one kernel, which reads a row again for each of the k
results."""

LEAST_RATIO = 64
"""Least number of elements of a row for each selected one in a selection.

torch then sorts partially, and a kernel that does the same selects the same of equal elements.
"""
MOST_READS = {"cpu": 1 << 13, "cuda": 1 << 27}
"""Largest product of k and the row length for which a topk is lowered, by device. torch's topk
reads a row once, the generated kernel 2 k times."""


@rule("argmax", "argmin")
def arg_extreme(low: Lowering, fx: Any) -> str | None:
    x, dim = operand(low, fx.args[0]), argument(fx, 1, "dim")
    keep = bool(argument(fx, 2, "keepdim", False))
    if not isinstance(x, str) or not _comparable(low, fx.args[0], x) or (dim is None and keep):
        return None
    if dim is None:
        x, dim = low.view(x, (math.prod(low.shape(x)),), "flat"), 0
    extremes = _extremes(low, x, "amax" if "max" in target_of(fx) else "amin", dim, keep)
    return extremes[1] if extremes else None


@rule("max", "min")
def extreme(low: Lowering, fx: Any) -> str | None:
    """Lower torch's max or min in its three forms: of a whole tensor, along a dimension with
    indices, or of two tensors."""
    x, (_, name, form) = operand(low, fx.args[0]), str(fx.target).split(".")
    if not isinstance(x, str) or not _comparable(low, fx.args[0], x):
        return None
    if form == "other":
        y = operand(low, fx.args[1])
        return low.pointwise(f"{name}imum", x, y, hint="") if isinstance(y, str) else None
    if form == "default":
        return low.reduce(f"a{name}", x, range(len(low.shape(x))), False)
    keep = bool(argument(fx, 2, "keepdim", False))
    extremes = _extremes(low, x, f"a{name}", fx.args[1], keep)
    if extremes:
        low.multiple[fx.name] = extremes
    return extremes[0] if extremes else None


@rule("topk")
def topk(low: Lowering, fx: Any) -> str | None:
    """Lower topk to k extremes, each over the elements that remain after the extremes before."""
    x, k = operand(low, fx.args[0]), fx.args[1]
    if not isinstance(x, str) or not _comparable(low, fx.args[0], x):
        return None
    shape = low.shape(x)
    dim = argument(fx, 2, "dim", -1) % len(shape)
    if not 0 < k <= shape[dim] <= MAX_INDEX:
        return None
    device, largest = fx.args[0].meta["val"].device.type, bool(argument(fx, 3, "largest", True))
    if k > MOST_TOP or k * shape[dim] > MOST_READS.get(device, MAX_INDEX):
        selects = device == "cpu" and dim == len(shape) - 1 and argument(fx, 4, "sorted", True)
        fits = selects and k * LEAST_RATIO <= shape[dim]
        return _selection(low, fx, x, k, largest) if fits else None
    place = tuple(n if d == dim else 1 for d, n in enumerate(shape))
    index = low.add(Node(low.unique_name("index"), Kind.INDEX, "index", (), place, dims=(dim,)))
    values, places, taken = [], [], ""
    for j in range(k):
        rest, hint = x, f"{j}"
        if taken:
            lowest = -math.inf if largest else math.inf
            rest = low.pointwise("where", taken, lowest, x, hint=f"rest_{hint}")
        top = low.reduce("amax" if largest else "amin", rest, [dim], True, f"top_{hint}")
        first = low.pointwise("index_if_equal", rest, top, index, hint=f"index_{hint}")
        if taken:
            first = low.pointwise("where", taken, math.inf, first, hint=f"free_{hint}")
        place_of_top = low.reduce("min", first, [dim], True, f"first_{hint}")
        here = low.pointwise("eq", index, place_of_top, hint=f"is_{hint}", dtype="bool")
        values.append(top)
        places.append(place_of_top)
        if taken:
            taken = low.pointwise("logical_or", taken, here, hint=f"taken_{hint}", dtype="bool")
        else:
            taken = here
    dtype = dtype_of(fx)
    found = _joined(low, values, dim, dtype, "values"), _joined(low, places, dim, "int64", "places")
    low.multiple[fx.name] = found
    return found[0]


def _selection(low: Lowering, fx: Any, x: str, count: int, largest: bool) -> str:
    """Add a selection of `count` elements along the last dimension, and its indices."""
    shape, dtype = (*low.shape(x)[:-1], count), dtype_of(fx)
    op, origin = "largest" if largest else "smallest", low.origin
    name = low.unique_name("")
    low.add(Node(name, Kind.SELECTION, op, (x,), shape, dtype, (len(shape) - 1,), origin))
    places = low.unique_name(PLACES)
    low.add(Node(places, Kind.SELECTION, PLACES, (name,), shape, "int64", origin=origin))
    low.multiple[fx.name] = (name, places)
    return name


def _joined(low: Lowering, parts: list[str], dim: int, dtype: str, hint: str) -> str:
    """Add the concatenation of nodes with one element along `dim`; return its name."""
    if len(parts) == 1:
        return low.pointwise("cast", parts[0], hint=hint, dtype=dtype)
    shape = list(low.shape(parts[0]))
    shape[dim] = len(parts)
    place = tuple(n if d == dim else 1 for d, n in enumerate(shape))
    value = parts[-1]
    for k in reversed(range(len(parts) - 1)):
        here = within(low, dim, k, k + 1, place)
        value = low.pointwise("where", here, parts[k], value, hint=f"{hint}_{k}")
    return low.pointwise("cast", value, hint=hint, dtype=dtype)


def _comparable(low: Lowering, fx: Any, x: str) -> bool:
    """Return True if a generated kernel compares the same values of `x` as torch.

    Torch rounds a computed value of a half type before it compares; a kernel would compare the
    unrounded value.
    """
    exact = dtype_of(fx) == "float32" or low.by_name[x].kind is not Kind.POINTWISE
    return floating(fx) and exact and bool(low.shape(x))


def _extremes(low: Lowering, x: str, op: str, dim: int, keep: bool) -> tuple[str, str] | None:
    """Add the extreme of `x` along `dim` and its index; return both names, or None if the dimension
    is longer than MAX_INDEX."""
    shape = low.shape(x)
    dim %= len(shape)
    if shape[dim] > MAX_INDEX:
        return None
    place = tuple(n if k == dim else 1 for k, n in enumerate(shape))
    index = low.add(Node(low.unique_name("index"), Kind.INDEX, "index", (), place, dims=(dim,)))
    top = low.reduce(op, x, [dim], True, "top")
    equal = low.pointwise("index_if_equal", x, top, index, hint="index_if_top")
    first = low.reduce("min", equal, [dim], keep, "first")
    result = low.pointwise("cast", first, hint="", dtype="int64")
    values = top if keep else low.view(top, low.shape(first), "value")
    return values, result
