"""Lower operators on single elements, and operators that only copy, cast or select a result."""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.graph import COMPUTED, INTEGERS, Kind, Operand
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    operator_name,
    rule,
    shape_of,
)
from cuagent.expert.rules import integers
from cuagent.expert.rules.writes import as_index

UNARY = {
    "neg", "abs", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "relu", "sigmoid",
    "tanh", "erf", "silu", "mish", "hardswish", "hardsigmoid", "sin", "cos", "floor", "ceil",
    "sign", "logical_not", "selu", "relu6", "softsign", "log_sigmoid", "asin", "acos", "atan",
    "exp2",
}  # fmt: skip
BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "maximum",
    "minimum": "minimum", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne",
    "logical_and": "logical_and", "logical_or": "logical_or", "true_divide": "div",
    "divide": "div", "multiply": "mul", "subtract": "sub", "atan2": "atan2",
}  # fmt: skip


@rule(*UNARY)
def unary(low: Lowering, fx: Any) -> str | None:
    name = str(fx.target).split(".")[1]
    if name != "logical_not" and not (floating(fx) and floating(fx.args[0])):
        return None
    x = operand(low, fx.args[0])
    return low.pointwise(name, x, hint="", dtype=dtype_of(fx)) if isinstance(x, str) else None


@rule("_neg_view")
def negative_view(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    return low.pointwise("neg", x, hint="") if isinstance(x, str) and floating(fx) else None


@rule("round", "trunc", "fix")
def to_integer(low: Lowering, fx: Any) -> str | None:
    """Lower rounding operators (round, trunc, ...), for float32 only.

    In half precision a kernel would round the unrounded float32 value, which may lie on the other
    side of an integer than the stored half-precision value.
    """
    name = {"round": "round"}.get(str(fx.target).split(".")[1], "trunc")
    x = operand(low, fx.args[0])
    exact = dtype_of(fx) == "float32" and len(fx.args) == 1 and not fx.kwargs
    return low.pointwise(name, x, hint="") if isinstance(x, str) and exact else None


@rule(*BINARY)
def binary(low: Lowering, fx: Any) -> str | None:
    a, b = operand(low, fx.args[0]), operand(low, fx.args[1])
    op = BINARY[str(fx.target).split(".")[1]]
    if a is None or b is None or not (isinstance(a, str) or isinstance(b, str)):
        return None
    if fx.kwargs.get("rounding_mode") is not None:
        return None
    if dtype_of(fx) in INTEGERS and fx.kwargs.get("alpha", 1) == 1 and op in EXACT:
        return integers.arithmetic(low, fx, op, *fx.args[:2])
    if dtype_of(fx) != "bool" and not floating(fx):
        return None
    if op in COMPARISONS:
        a, b = _places(low, fx, a, b)
    alpha = fx.kwargs.get("alpha", 1)
    if alpha != 1:
        b = b * alpha if not isinstance(b, str) else low.pointwise("mul", b, alpha, hint="scaled")
    return low.pointwise(op, a, b, hint="", dtype=dtype_of(fx))


def _places(low: Lowering, fx: Any, a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Return the operands of a comparison; an `arange` is replaced by the index of each element.

    The index is a float32, and so is then the other operand: of two integers of which one is at
    most 2^24, the comparison is exact.
    """
    first, second = (as_index(low, v) for v in fx.args[:2])
    if first is None and second is None:
        return a, b
    return low.as_number(first or a), low.as_number(second or b)


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
"""Operations of BINARY whose operands may be the places of the elements."""
EXACT = ("add", "sub", "mul", "maximum", "minimum")
"""Operations of BINARY that are lowered on integers too."""
BITWISE = {
    "bitwise_and": "logical_and", "__and__": "logical_and",
    "bitwise_or": "logical_or", "__or__": "logical_or",
    "bitwise_xor": "ne", "__xor__": "ne",
}  # fmt: skip


@rule(*BITWISE)
def bitwise(low: Lowering, fx: Any) -> str | None:
    """Lower bitwise operators; on boolean tensors they become logical operators."""
    if dtype_of(fx) in INTEGERS:
        name = operator_name(fx).strip("_").removeprefix("bitwise_")
        return integers.arithmetic(low, fx, f"bitwise_{name}", *fx.args[:2])
    a, b = operand(low, fx.args[0]), operand(low, fx.args[1])
    masks = all(hasattr(arg, "meta") and dtype_of(arg) == "bool" for arg in fx.args[:2])
    if not masks or not isinstance(a, str) or not isinstance(b, str):
        return None
    return low.pointwise(BITWISE[operator_name(fx)], a, b, hint="", dtype="bool")


@rule("bitwise_not")
def bitwise_not(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or dtype_of(fx) != "bool":
        return None
    return low.pointwise("logical_not", x, hint="", dtype="bool")


@rule("rsub")
def rsub(low: Lowering, fx: Any) -> str | None:
    a, b = operand(low, fx.args[0]), operand(low, fx.args[1])
    if a is None or b is None or argument(fx, 2, "alpha", 1) != 1:
        return None
    if dtype_of(fx) in INTEGERS:
        return integers.arithmetic(low, fx, "sub", fx.args[1], fx.args[0])
    return low.pointwise("sub", b, a, hint="") if floating(fx) else None


MOST_FACTORS = 8
"""Largest whole exponent for which a power is a product."""


@rule("pow")
def power(low: Lowering, fx: Any) -> str | None:
    x, exponent = operand(low, fx.args[0]), operand(low, fx.args[1])
    if x is None or exponent is None or not floating(fx):
        return None
    if isinstance(exponent, str) or not isinstance(x, str):
        return low.pointwise(
            "exp2" if x == 2 else "pow", *((exponent,) if x == 2 else (x, exponent)), hint=""
        )
    named = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if exponent in named:
        return low.pointwise(named[exponent], x, hint="")
    whole = float(exponent).is_integer() and 2 <= abs(exponent) <= MOST_FACTORS
    if not whole:
        return low.pointwise("pow", x, float(exponent), hint="")
    if exponent < 0:
        return low.pointwise("reciprocal", _product(low, x, -int(exponent), "factors"), hint="")
    return _product(low, x, int(exponent), "")


def _product(low: Lowering, x: str, count: int, hint: str) -> str:
    """Add the product of `count` equal factors, by squares."""
    if count == 1:
        return x
    half = _product(low, x, count // 2, "square" if count < 4 else "power")
    if count % 2 == 0:
        return low.pointwise("mul", half, half, hint=hint)
    square = low.pointwise("mul", half, half, hint="square")
    return low.pointwise("mul", square, x, hint=hint)


@rule("square")
def square(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    return low.pointwise("mul", x, x, hint="") if isinstance(x, str) and floating(fx) else None


@rule("gelu")
def gelu(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    tanh = argument(fx, 1, "approximate", "none") == "tanh"
    return (
        low.pointwise("gelu_tanh" if tanh else "gelu", x, hint="") if isinstance(x, str) else None
    )


@rule("leaky_relu", "elu", "hardtanh", "softplus", "hardtanh_", "threshold")
def parametric(low: Lowering, fx: Any) -> str | None:
    """Lower activations that have numeric parameters, such as leaky ReLU."""
    x = operand(low, fx.args[0])
    name = str(fx.target).split(".")[1]
    if not isinstance(x, str) or not floating(fx) or any(hasattr(a, "meta") for a in fx.args[1:]):
        return None
    p = low.pointwise
    match name:
        case "leaky_relu":
            return p("leaky_relu", x, argument(fx, 1, "negative_slope", 0.01), hint="")
        case "elu":
            alpha, scale = argument(fx, 1, "alpha", 1.0), argument(fx, 2, "scale", 1)
            if argument(fx, 3, "input_scale", 1) != 1:
                return None
            value = p("elu", x, alpha, hint="" if scale == 1 else "elu")
            return value if scale == 1 else p("mul", value, scale, hint="")
        case "softplus":
            beta, limit = argument(fx, 1, "beta", 1), argument(fx, 2, "threshold", 20)
            # Beyond 20 the function differs from its argument by less than rounding.
            if limit < 20 or beta <= 0:
                return None
            if beta == 1:
                return p("softplus", x, hint="")
            scaled = p("mul", x, beta, hint="scaled")
            value = p("mul", p("softplus", scaled), 1 / beta, hint="value")
            # As in torch: the product with beta may overflow.
            return p("where", p("gt", scaled, limit, dtype="bool"), x, value, hint="")
        case "threshold":
            below = p("le", x, fx.args[1], hint="below", dtype="bool")
            return p("where", below, fx.args[2], x, hint="")
    return _clamped(low, x, argument(fx, 1, "min_val", -1.0), argument(fx, 2, "max_val", 1.0))


@rule("clamp", "clamp_min", "clamp_max", "clip")
def clamp(low: Lowering, fx: Any) -> str | None:
    """Lower limits that are numbers or tensors."""
    name = operator_name(fx)
    lower = None if name == "clamp_max" else argument(fx, 1, "min")
    upper = argument(fx, 1 if name == "clamp_max" else 2, "max")
    x, *limits = (None if v is None else operand(low, v) for v in (fx.args[0], lower, upper))
    known = all((v is None) == (w is None) for v, w in zip((lower, upper), limits, strict=True))
    tensors = [v for v in (lower, upper) if hasattr(v, "meta")]
    if dtype_of(fx) in INTEGERS:
        return integers.limited(low, fx, lower, upper)
    if not isinstance(x, str) or not known or not all(map(floating, (fx, fx.args[0], *tensors))):
        return None
    return _clamped(low, x, *limits)


def _clamped(low: Lowering, x: str, lower: Operand | None, upper: Operand | None) -> str:
    if lower is not None:
        x = low.pointwise("maximum", x, lower, hint="" if upper is None else "floor")
    return x if upper is None else low.pointwise("minimum", x, upper, hint="")


@rule("prelu")
def prelu(low: Lowering, fx: Any) -> str | None:
    """Lower PReLU: a leaky ReLU with learned slopes, one for all channels or one for each
    channel."""
    x, slope = operand(low, fx.args[0]), operand(low, fx.args[1])
    if not isinstance(x, str) or not isinstance(slope, str) or not floating(fx):
        return None
    rank, (count,) = len(shape_of(fx)), shape_of(fx.args[1]) or (1,)
    if count > 1 and rank > 1:
        slope = low.view(slope, (count, *(1,) * (rank - 2)), "slope")
    scaled = low.pointwise("mul", x, slope, hint="scaled")
    positive = low.pointwise("gt", x, 0.0, hint="positive", dtype="bool")
    return low.pointwise("where", positive, x, scaled, hint="")


@rule("where")
def where(low: Lowering, fx: Any) -> str | None:
    if dtype_of(fx) in INTEGERS and len(fx.args) == 3:
        return integers.choice(low, fx, *fx.args)
    args = [operand(low, arg) for arg in fx.args]
    lowered = [arg for arg in args if arg is not None]
    if len(lowered) != 3 or not floating(fx):
        return None
    return low.pointwise("where", *lowered, hint="")


@rule("masked_fill")
def masked_fill(low: Lowering, fx: Any) -> str | None:
    if dtype_of(fx) in INTEGERS:
        return integers.choice(low, fx, fx.args[1], fx.args[2], fx.args[0])
    x, mask, value = (operand(low, arg) for arg in fx.args)
    if x is None or mask is None or value is None or not floating(fx):
        return None
    return low.pointwise("where", mask, value, x, hint="")


@rule(
    "_to_copy",
    "to",
    "clone",
    "contiguous",
    "alias",
    "detach",
    "dropout",
    "lift_fresh_copy",
    "type_as",
)
def identity(low: Lowering, fx: Any) -> str | None:
    """Lower copies: a plain copy becomes its argument; a copy with another floating-point dtype or
    layout becomes a cast."""
    x = operand(low, fx.args[0])
    if operator_name(fx) in ("alias", "detach") and isinstance(x, str):
        return x
    if floating(fx) and dtype_of(fx.args[0]) in NUMBERS and isinstance(x, str):
        return _number(low, fx, x)
    if converted := integers.cast(low, fx):
        return converted
    cast = floating(fx) and floating(fx.args[0])
    if isinstance(x, str) and _keeps_layout(low, fx, x):
        return x
    same = cast or dtype_of(fx) == dtype_of(fx.args[0])
    # A kernel writes its result contiguously, also where torch's result would be permuted.
    computed = isinstance(x, str) and low.by_name[x].kind in COMPUTED
    converts = cast and dtype_of(fx) != dtype_of(fx.args[0])
    converts = converts and (computed or _widens_for_kernels(fx))
    same = same and (converts or low.layouts or fx.meta["val"].is_contiguous())
    eval_mode = "dropout" not in str(fx.target) or fx.args[2] is False
    if not isinstance(x, str) or not same or not eval_mode:
        return None
    if low.by_name[x].kind is Kind.STRIDED:
        return low.pointwise("cast", x, hint="", dtype=dtype_of(fx)) if floating(fx) else None
    return x if low.layouts or computed or fx.args[0].meta["val"].is_contiguous() else None


READ_IN_PLACE = {
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "attention", "scored_attention",
    "scaled_dot_product_attention",
}  # fmt: skip
"""Operators that read permuted operands of torch without a copy."""


def _widens_for_kernels(fx: Any) -> bool:
    """Return True for a cast to float32 that products and attentions do not read."""
    readers = {operator_name(user) for user in fx.users}
    return dtype_of(fx) == "float32" and not readers & READ_IN_PLACE


NUMBERS = ("bool", "int64", "int32", "uint8")
"""dtypes of integers and booleans that a kernel can load."""


def _number(low: Lowering, fx: Any, x: str) -> str | None:
    """Lower a cast of a boolean tensor or of integers to a floating-point dtype.

    torch, too, converts integers to float32 before it rounds them to a half type.
    """
    if not fx.meta["val"].is_contiguous() or "dropout" in str(fx.target):
        return None
    if dtype_of(fx.args[0]) == "bool":
        return low.pointwise("where", x, 1.0, 0.0, hint="", dtype=dtype_of(fx))
    return low.pointwise("cast", x, hint="", dtype=dtype_of(fx))


def _keeps_layout(low: Lowering, fx: Any, x: str) -> bool:
    """Return True if `fx` copies a library call's result without changing its dtype and its
    permuted strides."""
    before, after = fx.args[0].meta["val"], fx.meta["val"]
    training = "dropout" in str(fx.target) and fx.args[2] is not False
    fresh = low.by_name[x].kind is Kind.LIBRARY and not before.is_contiguous()
    same = (before.dtype, before.stride()) == (after.dtype, after.stride())
    return fresh and same and not training


@rule("broadcast_tensors")
def broadcast_tensors(low: Lowering, fx: Any) -> str | None:
    """Lower `broadcast_tensors` of equal shapes, as losses call it, to its arguments."""
    names = [operand(low, arg) for arg in fx.args[0]]
    shapes = {shape_of(arg) for arg in fx.args[0]}
    if len(shapes) > 1 or not all(isinstance(name, str) for name in names):
        return None
    low.multiple[fx.name] = tuple(names)  # type: ignore[arg-type]
    return names[0]  # type: ignore[return-value]


@rule("getitem")
def getitem(low: Lowering, fx: Any) -> str | None:
    """Lower the selection of result `k` of an operator. A batch norm in eval mode has only result
    0."""
    source, k = fx.args[0].name, fx.args[1]
    if source in low.multiple:
        return low.multiple[source][k]
    value = low.values.get(source)
    lowered = isinstance(value, str) and low.by_name[value].kind != "library"
    return value if lowered and k == 0 else None  # type: ignore[return-value]
