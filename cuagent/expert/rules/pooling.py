"""Lower pooling and interpolation.

A pool with one result for each channel becomes a mean or an extreme, which the streaming kernels
can fuse.
"""

from __future__ import annotations

import re
from typing import Any

from cuagent.expert.graph.graph import Kind, Node, Scale, Window
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

MAX_TAPS = 1 << 10
"""Largest number of elements of a window that is lowered; torch has better algorithms for larger
windows."""


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(low: Lowering, fx: Any) -> str | None:
    rank = int(target_of(fx)[-2])
    kernel = argument(fx, 1, "kernel_size")
    stride = argument(fx, 2, "stride", ()) or kernel
    padding, dilation = argument(fx, 3, "padding", 0), argument(fx, 4, "dilation", 1)
    sides = _sides(fx, rank, kernel, stride, padding, dilation)
    return _pool(low, fx, "max", sides)


@rule("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_of_pair(low: Lowering, fx: Any) -> str | None:
    """Lower a max pool that also returns indices; None if the indices are used."""
    if _reads_indices(fx):
        return None
    rank = int(re.sub(r"\D", "", target_of(fx)))
    kernel = argument(fx, 1, "kernel_size")
    stride = argument(fx, 2, "stride", ()) or kernel
    padding, dilation = argument(fx, 3, "padding", 0), argument(fx, 4, "dilation", 1)
    return _pair(low, fx, _sides(fx, rank, kernel, stride, padding, dilation))


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max(low: Lowering, fx: Any) -> str | None:
    """Lower an adaptive max pool that also returns indices; None if the indices are used."""
    rank = int(target_of(fx)[-2])
    return None if _reads_indices(fx) else _pair(low, fx, _adaptive_sides(fx, rank))


def _reads_indices(fx: Any) -> bool:
    return any(user.args[1] == 1 and user.users for user in fx.users)


def _pair(low: Lowering, fx: Any, sides: tuple[Window, ...]) -> str | None:
    """Lower a max pool that has two results, of which the maxima are the first."""
    name = _pool(low, fx, "max", sides)
    if name is not None:
        low.multiple[fx.name] = (name,)
    return name


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(low: Lowering, fx: Any) -> str | None:
    rank = int(target_of(fx)[-2])
    kernel = argument(fx, 1, "kernel_size")
    stride = argument(fx, 2, "stride", ()) or kernel
    counted = bool(argument(fx, 5, "count_include_pad", True))
    sides = _sides(fx, rank, kernel, stride, argument(fx, 3, "padding", 0), 1, counted)
    divisor = argument(fx, 6, "divisor_override")
    return _pool(low, fx, "mean" if divisor is None else "sum", sides, divisor or 1)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_average(low: Lowering, fx: Any) -> str | None:
    """Lower an adaptive average pool to a mean over whole dimensions, or to windows of equal or
    different sizes."""
    x = operand(low, fx.args[0])
    rank = int(target_of(fx)[-2])
    if not isinstance(x, str) or not floating(fx):
        return None
    if all(n == 1 for n in shape_of(fx)[-rank:]):
        return low.mean(x, range(-rank, 0), True)
    return _pool(low, fx, "mean", _adaptive_sides(fx, rank))


def _adaptive_sides(fx: Any, rank: int) -> tuple[Window, ...]:
    """Return one `Window` per dimension of an adaptive pool, with a constant size where the sizes
    divide evenly."""
    given, made = shape_of(fx.args[0])[-rank:], shape_of(fx)[-rank:]
    return tuple(
        Window(n, m, n // m, n // m) if n % m == 0 else Window(n, m, adaptive=True)
        for n, m in zip(given, made, strict=True)
    )


def _several(value: Any, rank: int) -> list[int]:
    """Return `value` as a list with one number for each of `rank` dimensions."""
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _sides(
    fx: Any, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, counted: bool = True
) -> tuple[Window, ...]:
    given = tuple(int(n) for n in fx.args[0].meta["val"].shape)[-rank:]
    lists = (_several(v, rank) for v in (kernel, stride, padding, dilation))
    return tuple(
        Window(n, m, k, s, p, d, include_padding=counted)
        for n, m, k, s, p, d in zip(given, shape_of(fx)[-rank:], *lists, strict=True)
    )


def _pool(
    low: Lowering, fx: Any, op: str, sides: tuple[Window, ...], divisor: int = 1
) -> str | None:
    x, shape = operand(low, fx.args[0]), shape_of(fx)
    taps = 1
    for side in sides:
        taps *= side.kernel or -(-side.extent // side.count) + 1
    if not isinstance(x, str) or not floating(fx) or taps > MAX_TAPS:
        return None
    dims = tuple(range(len(shape) - len(sides), len(shape)))
    name = low.unique_name("" if divisor == 1 else "sum")
    pool = Node(
        name, Kind.POOL, op, (x,), shape, low.by_name[x].dtype, dims, low.origin, spec=sides
    )
    low.add(pool)
    return low.pointwise("div", name, divisor, hint="") if divisor != 1 else name


@rule(
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
)  # fmt: skip
def resample(low: Lowering, fx: Any) -> str | None:
    x, shape = operand(low, fx.args[0]), shape_of(fx)
    if not isinstance(x, str) or not floating(fx) or not str(fx.target).endswith(".vec"):
        return None
    rank = int(target_of(fx)[-2])
    linear = "nearest" not in target_of(fx)
    corners = bool(linear and fx.args[2])
    factors = fx.args[3 if linear else 2] or [None] * rank
    given = low.shape(x)[-rank:]
    sides = tuple(
        Scale(n, m, _factor(n, m, factor, corners), linear and not corners)
        for n, m, factor in zip(given, shape[-rank:], factors, strict=True)
    )
    dims = tuple(range(len(shape) - rank, len(shape)))
    if linear and fx.args[0].meta["val"].device.type == "cpu":
        # torch's CPU kernels copy along such a dimension and ignore the factor.
        resized = [k for k, side in enumerate(sides) if side.extent != side.count]
        if not resized:
            return low.pointwise("cast", x, hint="", dtype=dtype_of(fx))
        sides, dims = tuple(sides[k] for k in resized), tuple(dims[k] for k in resized)
    op, dtype = "linear" if linear else "nearest", low.by_name[x].dtype
    name = low.unique_name("")
    return low.add(Node(name, Kind.RESAMPLE, op, (x,), shape, dtype, dims, low.origin, spec=sides))


def _factor(given: int, made: int, factor: float | None, corners: bool) -> float:
    """Return the distance of adjacent results in elements of the argument, as torch computes it.
    `corners`: argument `align_corners`."""
    if corners:
        return (given - 1) / (made - 1) if made > 1 else 0.0
    return 1.0 / factor if factor else given / made
