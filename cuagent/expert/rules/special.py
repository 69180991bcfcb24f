"""Lower tests for NaN and infinity, functions of two tensors with special cases, and remainders.

Not covered: floating-point quotients, rounded down, of divisors that are not powers of two; on a
GPU also their remainders.
"""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.graph import Kind, Operand
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    operator_name,
    rule,
    value_of,
)
from cuagent.expert.rules.integers import by_number, is_integer

LARGEST = {"float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38, "float16": 65504.0}
"""Largest finite value of each dtype."""


def _may_overflow(low: Lowering, arg: Any, x: str) -> bool:
    """Return True for computed float16 values: a kernel keeps them in float32, where they are
    finite.
    """
    return dtype_of(arg) == "float16" and low.by_name[x].kind not in (Kind.INPUT, Kind.PARAMETER)


@rule("isnan", "isinf", "isfinite")
def test(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or not floating(fx.args[0]):
        return None
    name = operator_name(fx)
    if name != "isnan" and _may_overflow(low, fx.args[0], x):
        return None
    if name == "isnan":
        return low.pointwise("ne", x, x, hint="", dtype="bool")
    size = low.pointwise("abs", x, hint="size")
    compare = "eq" if name == "isinf" else "lt"
    return low.pointwise(compare, size, math.inf, hint="", dtype="bool")


@rule("nan_to_num")
def nan_to_num(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or not floating(fx) or _may_overflow(low, fx.args[0], x):
        return None
    p, largest = low.pointwise, LARGEST[dtype_of(fx)]
    names = ((1, "nan", 0.0), (2, "posinf", largest), (3, "neginf", -largest))
    of_nan, above, below = (
        default if (value := argument(fx, k, name)) is None else value for k, name, default in names
    )
    value = p("where", p("eq", x, math.inf, dtype="bool"), above, x, hint="above")
    value = p("where", p("eq", x, -math.inf, dtype="bool"), below, value, hint="below")
    return p("where", p("ne", x, x, dtype="bool"), of_nan, value, hint="")


@rule("logical_xor")
def exclusive_or(low: Lowering, fx: Any) -> str | None:
    a, b = operand(low, fx.args[0]), operand(low, fx.args[1])
    if not isinstance(a, str) or not isinstance(b, str):
        return None
    if any(dtype_of(arg) != "bool" for arg in fx.args[:2]):
        return None
    return low.pointwise("ne", a, b, hint="", dtype="bool")


@rule("hypot", "xlogy")
def of_two(low: Lowering, fx: Any) -> str | None:
    """Lower sqrt(x^2 + y^2) without overflow, and x log y, which is 0 for x = 0."""
    a, b = operand(low, fx.args[0]), operand(low, fx.args[1])
    if a is None or b is None or not floating(fx):
        return None
    p = low.pointwise
    if operator_name(fx) == "xlogy":
        if not isinstance(a, str) and a:
            return p("mul", a, p("log", b), hint="")
        if not isinstance(a, str):
            return p("where", p("eq", b, b, dtype="bool"), 0.0, b, hint="")
        zero = p("eq", a, 0.0, dtype="bool")
        if isinstance(b, str):
            zero = p("logical_and", zero, p("eq", b, b, hint="number", dtype="bool"), dtype="bool")
        return p("where", zero, 0.0, p("mul", a, p("log", b)), hint="")
    x, y = p("abs", a), p("abs", b)
    far, near = p("maximum", x, y, hint="far"), p("minimum", x, y, hint="near")
    ratio = p("div", near, far, hint="ratio")
    length = p("mul", far, p("sqrt", p("add", p("mul", ratio, ratio), 1.0)), hint="length")
    # 0 / 0 and the quotient of infinities are NaN; C's hypot ignores NaN next to infinity.
    length = p("where", p("eq", far, 0.0, dtype="bool"), 0.0, length, hint="finite")
    either = [p("eq", v, math.inf, hint="infinite", dtype="bool") for v in (x, y)]
    return p("where", p("logical_or", *either, dtype="bool"), math.inf, length, hint="")


@rule("remainder", "floor_divide")
def quotient(low: Lowering, fx: Any) -> str | None:
    """Lower quotients rounded down, and remainders, which are exact.

    Floating-point quotients are lowered for powers of two only; on a GPU remainders too.
    """
    if is_integer(fx):
        return by_number(low, fx)
    x, divisor = operand(low, fx.args[0]), operand(low, fx.args[1])
    # A half type rounds the argument first, perhaps across a multiple.
    if not isinstance(x, str) or dtype_of(fx) != "float32":
        return None
    if not _is_power_of_two(divisor):
        on_cpu = value_of(fx).device.type == "cpu" and operator_name(fx) == "remainder"
        if not on_cpu or divisor is None or not floating(fx.args[0]):
            return None
        if isinstance(divisor, str) and low.by_name[divisor].dtype != "float32":
            return None
        return low.pointwise("remainder", x, divisor, hint="")
    assert not isinstance(divisor, str)
    assert divisor is not None
    p = low.pointwise
    exact = operator_name(fx) == "remainder"
    scaled = p("mul", x, 1 / divisor, hint="scaled") if divisor != 1 else x
    whole = p("floor", scaled, hint="whole" if exact else "")
    if not exact:
        return whole
    return p(
        "sub", x, p("mul", whole, divisor, hint="multiple") if divisor != 1 else whole, hint=""
    )


def _is_power_of_two(value: Operand | None) -> bool:
    positive = isinstance(value, int | float) and value > 0
    return positive and math.frexp(value)[0] == 0.5  # type: ignore[arg-type]
