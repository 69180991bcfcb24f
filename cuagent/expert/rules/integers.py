"""Lower elementwise arithmetic on integers, for kernels on the CPU.

A kernel computes in the dtype of the result and wraps around as torch does. Quotients, remainders
and shifts need a positive number on the right side. Not covered: sums of integers, true division
(the operands become float32 there, see `Lowering.pointwise`), dtypes other than `INTEGERS`.
"""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.graph import INTEGERS, Kind, Operand
from cuagent.expert.graph.lowering import (
    Lowering,
    dtype_of,
    operand,
    operator_name,
    rule,
    value_of,
)

WIDTH = {"int64": 64, "int32": 32, "uint8": 8, "int8": 8}
"""Bits of each integer dtype."""
LEAST = {"int64": -(1 << 63), "int32": -(1 << 31), "uint8": 0, "int8": -128}
"""Least number of each integer dtype."""
LEFT = ("__lshift__", "bitwise_left_shift")


def is_integer(fx: Any) -> bool:
    """Return True if a captured value is a tensor of integers on the CPU."""
    return dtype_of(fx) in INTEGERS and value_of(fx).device.type == "cpu"


def arithmetic(low: Lowering, fx: Any, op: str, *values: Any) -> str | None:
    """Add an elementwise operation on integers; None unless all operands are integers or booleans.

    The operands are cast to the dtype of the result.
    """
    dtype = dtype_of(fx)
    operands = [_as(low, value, dtype) for value in values]
    if not is_integer(fx) or None in operands or not any(isinstance(a, str) for a in operands):
        return None
    return low.pointwise(op, *(a for a in operands if a is not None), hint="", dtype=dtype)


def _as(low: Lowering, value: Any, dtype: str) -> Operand | None:
    """Return an operand in the dtype of the result; None if it is not an integer."""
    found = operand(low, value)
    if not isinstance(found, str):
        if not isinstance(found, int) or dtype not in WIDTH:
            return None
        return found if 0 <= found - LEAST[dtype] < 1 << WIDTH[dtype] else None
    own = low.by_name[found].dtype
    if own == dtype:
        return found
    if own == "bool":
        return low.pointwise("where", found, 1, 0, hint="number", dtype=dtype)
    return low.pointwise("cast", found, hint="number", dtype=dtype) if own in INTEGERS else None


@rule("__rshift__", "bitwise_right_shift", *LEFT)
def by_number(low: Lowering, fx: Any) -> str | None:
    """Lower shifts, quotients rounded down and remainders of integers (`special.quotient`)."""
    name, number = operator_name(fx), operand(low, fx.args[1])
    if not is_integer(fx):
        return None
    if not isinstance(number, int) or number <= 0:
        return None
    if name in ("floor_divide", "remainder"):
        return arithmetic(low, fx, name, *fx.args[:2])
    if number >= WIDTH[dtype_of(fx)]:
        return None
    return arithmetic(low, fx, "shift_left" if name in LEFT else "shift_right", *fx.args[:2])


def choice(low: Lowering, fx: Any, mask: Any, a: Any, b: Any) -> str | None:
    """Add a choice between integers."""
    here, values = operand(low, mask), [_as(low, value, dtype_of(fx)) for value in (a, b)]
    if not isinstance(here, str) or None in values or not is_integer(fx):
        return None
    if low.by_name[here].dtype != "bool":
        return None
    return low.pointwise(
        "where", here, *(v for v in values if v is not None), hint="", dtype=dtype_of(fx)
    )


def limited(low: Lowering, fx: Any, lower: Any, upper: Any) -> str | None:
    """Add limits, which are integers or None, to integers."""
    if not is_integer(fx) or dtype_of(fx.args[0]) != dtype_of(fx):
        return None
    x: Operand | None = operand(low, fx.args[0])
    for op, limit in (("maximum", lower), ("minimum", upper)):
        if limit is None:
            continue
        value = _as(low, limit, dtype_of(fx))
        if value is None or not isinstance(x, str):
            return None
        x = low.pointwise(op, x, value, hint="", dtype=dtype_of(fx))
    return x if isinstance(x, str) else None


def cast(low: Lowering, fx: Any) -> str | None:
    """Lower a conversion between integers, or of booleans to integers."""
    x = fx.args[0]
    plain = operator_name(fx) in ("_to_copy", "to", "type_as") and value_of(fx).is_contiguous()
    if not plain or not is_integer(fx) or dtype_of(x) == dtype_of(fx):
        return None
    found = _as(low, x, dtype_of(fx))
    stored = isinstance(found, str) and low.by_name[found].kind is Kind.POINTWISE
    return str(found) if stored else None
