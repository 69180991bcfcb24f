"""Orders of a tensor's dimensions in memory, and slices of memory in another order."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from cuagent.expert.graph.graph import Node, Shape, contiguous_strides

Order = tuple[int, ...]
"""Dimensions of a value, outermost in memory first."""
CHANNELS_LAST: Order = (0, 2, 3, 1)
"""Order of the dimensions of images in channels-last layout."""


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """Return the order of a dense tensor's dimensions, () if it is contiguous; None if not dense.

    Strides of dimensions with one element are ignored.
    """
    rank = len(shape)
    whole = tuple(range(rank))
    for order in (whole, (0, *whole[2:], 1)[:rank], by_stride(shape, strides)):
        step, dense = 1, len(order) == rank
        for d in reversed(order):
            dense = dense and (shape[d] == 1 or strides[d] == step)
            step *= shape[d]
        if dense:
            return () if order == whole else order
    return None


def by_stride(shape: Sequence[int], strides: Sequence[int]) -> Order:
    """Return the dimensions of one element, then the others, outermost in memory first."""
    return tuple(sorted(range(len(shape)), key=lambda d: (shape[d] > 1, -strides[d], d)))


def order_of_value(value: Any) -> Order:
    """Return the order of a traced tensor; () also for any value that is not a dense tensor."""
    if not hasattr(value, "stride") or value.numel() == 0:
        return ()
    return order_of(tuple(map(int, value.shape)), value.stride()) or ()


CORRECTED = "corrected_layout"
"""Key in `meta` of an fx node whose traced strides were replaced by those of a real call."""


def has_layouts(nodes: Sequence[Any]) -> bool:
    """Return True if an input, a convolution's result or a computed output has permuted dimensions,
    or a convolution's argument is in channels-last layout.

    Also if an output has the layout of a real call (`CORRECTED`): a call of torch that computes it
    may return another one.

    For an output that only views another value's memory, that value counts: the view's strides
    follow from its order.
    """
    results = [fx for fx in nodes[-1].args[0] if hasattr(fx, "op")]
    if any(CORRECTED in fx.meta for fx in results):
        return True
    outputs = {_viewed_value(fx) for fx in results}
    layers = [fx for fx in nodes if ".conv" in str(fx.target)]
    found = [*layers, *(fx for fx in nodes if fx.op == "placeholder" and fx.users)]
    found += [fx for fx in outputs if fx.op == "call_function"]
    read = [fx.args[0] for fx in layers if hasattr(fx.args[0], "meta")]
    return any(order_of_value(fx.meta.get("val")) for fx in found) or any(
        order_of_value(fx.meta.get("val")) == CHANNELS_LAST for fx in read
    )


def _viewed_value(fx: Any) -> Any:
    """Return the value whose memory an output views, or the output itself."""
    while fx.op == "call_function":
        part = fx.target is operator.getitem
        if not is_view(fx.args[0] if part else fx):
            break
        fx = fx.args[0]
    return fx


def is_view(fx: Any) -> bool:
    """Return True if an operator's result shares the memory of its first argument."""
    alias = fx.target._schema.returns[0].alias_info if hasattr(fx.target, "_schema") else None
    return alias is not None


def permuted(values: Sequence[int], order: Order) -> tuple[int, ...]:
    """Return `values` (one for each dimension) in the given order; () leaves them as they are."""
    return tuple(values[d] for d in order) if order else tuple(values)


def inverse(order: Order) -> Order:
    """Return the permutation that undoes `order`."""
    return tuple(order.index(d) for d in range(len(order)))


def moved_slice(
    node: Node, given: Shape, place: Sequence[int]
) -> tuple[tuple[int, ...], int] | None:
    """Return strides and offset of the slice `node` if its argument has the strides `place`.

    The node's own strides hold for a contiguous argument of the shape `given`. Returns None if one
    of them crosses the border of a dimension.
    """
    steps = contiguous_strides(given)
    reach = [0] * len(given)

    def coordinates(distance: int) -> list[int]:
        found = []
        for step, extent in zip(steps, given, strict=True):
            found.append(distance // step if extent > 1 else 0)
            distance -= found[-1] * step
        return found

    def weighted(index: list[int]) -> int:
        return sum(i * p for i, p in zip(index, place, strict=True))

    strides = []
    for extent, stride in zip(node.shape, node.strides, strict=True):
        index = coordinates(stride) if extent > 1 else [0] * len(given)
        reach = [r + i * (extent - 1) for r, i in zip(reach, index, strict=True)]
        strides.append(weighted(index))
    first = coordinates(node.offset)
    inside = all(f + r < n for f, r, n in zip(first, reach, given, strict=True))
    nonnegative = node.offset >= 0 and min(node.strides, default=0) >= 0
    whole = math.prod(given) > 0
    return (tuple(strides), weighted(first)) if inside and nonnegative and whole else None
