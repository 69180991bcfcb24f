"""One lowering rule for each operator that the expert takes apart.

A rule gives the name of the node that stands for the operator's result, or None where this use of
it (a dtype, a mode, a layout) is not covered and the operator stays a library call.
"""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph import Kind, Node, Operand
from cuagent.expert.lower import BINARY, UNARY, Lowering, Rule, dtype_of, shape_of

LOWERINGS: dict[str, Rule] = {}


def rule(*names: str) -> Any:
    def register(function: Rule) -> Rule:
        for name in names:
            LOWERINGS[name] = function
        return function

    return register


def operand(low: Lowering, value: Any) -> Operand | None:
    """The node or the number that an fx argument stands for; None for anything else."""
    if hasattr(value, "meta"):
        return low.values.get(value.name)
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float) and not math.isnan(value) else None


def argument(fx: Any, position: int, name: str, default: Any = None) -> Any:
    """An operator's argument, given by position or by name."""
    if position < len(fx.args):
        return fx.args[position]
    return fx.kwargs.get(name, default)


def floating(fx: Any) -> bool:
    return dtype_of(fx) == "float32"


@rule(*UNARY)
def unary(low: Lowering, fx: Any) -> str | None:
    name = str(fx.target).split(".")[1]
    if name != "logical_not" and not (floating(fx) and floating(fx.args[0])):
        return None
    x = operand(low, fx.args[0])
    return low.pointwise(name, x, hint="", dtype=dtype_of(fx)) if isinstance(x, str) else None


@rule(*BINARY)
def binary(low: Lowering, fx: Any) -> str | None:
    a, b = operand(low, fx.args[0]), operand(low, fx.args[1])
    op = BINARY[str(fx.target).split(".")[1]]
    if a is None or b is None or not (isinstance(a, str) or isinstance(b, str)):
        return None
    if fx.kwargs.get("rounding_mode") is not None:
        return None
    if dtype_of(fx) not in ("float32", "bool"):
        return None
    alpha = fx.kwargs.get("alpha", 1)
    if alpha != 1:
        b = b * alpha if not isinstance(b, str) else low.pointwise("mul", b, alpha, hint="scaled")
    return low.pointwise(op, a, b, hint="", dtype=dtype_of(fx))


@rule("rsub")
def rsub(low: Lowering, fx: Any) -> str | None:
    a, b = operand(low, fx.args[0]), operand(low, fx.args[1])
    if a is None or b is None or not floating(fx) or argument(fx, 2, "alpha", 1) != 1:
        return None
    return low.pointwise("sub", b, a, hint="")


@rule("pow")
def power(low: Lowering, fx: Any) -> str | None:
    x, exponent = operand(low, fx.args[0]), fx.args[1]
    if not isinstance(x, str) or not floating(fx):
        return None
    if exponent == 2:
        return low.pointwise("mul", x, x, hint="")
    if exponent == 3:
        return low.pointwise("mul", low.pointwise("mul", x, x, hint="square"), x, hint="")
    named = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    return low.pointwise(named[exponent], x, hint="") if exponent in named else None


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


@rule("leaky_relu", "elu", "hardtanh", "clamp", "clamp_min", "clamp_max", "softplus", "hardtanh_")
def parametric(low: Lowering, fx: Any) -> str | None:
    """Activations with numbers for parameters."""
    x = operand(low, fx.args[0])
    name = str(fx.target).split(".")[1]
    if not isinstance(x, str) or not floating(fx) or any(hasattr(a, "meta") for a in fx.args[1:]):
        return None
    match name:
        case "leaky_relu":
            return low.pointwise("leaky_relu", x, argument(fx, 1, "negative_slope", 0.01), hint="")
        case "elu":
            if (argument(fx, 2, "scale", 1), argument(fx, 3, "input_scale", 1)) != (1, 1):
                return None
            return low.pointwise("elu", x, argument(fx, 1, "alpha", 1.0), hint="")
        case "softplus":
            if (argument(fx, 1, "beta", 1), argument(fx, 2, "threshold", 20)) != (1, 20):
                return None
            return low.pointwise("softplus", x, hint="")
    if name == "clamp_max":
        least, most = None, argument(fx, 1, "max")
    elif name == "hardtanh":
        least, most = argument(fx, 1, "min_val", -1.0), argument(fx, 2, "max_val", 1.0)
    else:
        least, most = argument(fx, 1, "min"), argument(fx, 2, "max")
    if least is not None:
        x = low.pointwise("maximum", x, least, hint="" if most is None else "floor")
    return x if most is None else low.pointwise("minimum", x, most, hint="")


@rule("where")
def where(low: Lowering, fx: Any) -> str | None:
    args = [operand(low, arg) for arg in fx.args]
    known = [arg for arg in args if arg is not None]
    if len(known) != 3 or not floating(fx):
        return None
    return low.pointwise("where", *known, hint="")


@rule("masked_fill")
def masked_fill(low: Lowering, fx: Any) -> str | None:
    x, mask, value = (operand(low, arg) for arg in fx.args)
    if x is None or mask is None or value is None or not floating(fx):
        return None
    return low.pointwise("where", mask, value, x, hint="")


@rule("_to_copy", "to", "clone", "contiguous", "alias", "detach", "dropout", "lift_fresh_copy")
def identity(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    same = dtype_of(fx) == dtype_of(fx.args[0]) and fx.meta["val"].is_contiguous()
    eval_mode = "dropout" not in str(fx.target) or fx.args[2] is False
    source = fx.args[0].meta["val"]
    return x if isinstance(x, str) and same and eval_mode and source.is_contiguous() else None


@rule("view", "reshape", "_unsafe_view", "flatten", "unsqueeze", "squeeze", "unflatten")
def view(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    flat = fx.args[0].meta["val"].is_contiguous() and fx.meta["val"].is_contiguous()
    return low.view(x, shape_of(fx), "") if isinstance(x, str) and flat else None


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(low: Lowering, fx: Any) -> str | None:
    x, dim = operand(low, fx.args[0]), fx.args[1]
    if not isinstance(x, str) or not floating(fx):
        return None
    shifted = low.pointwise("sub", x, low.reduce("max", x, [dim], True), hint="shifted")
    powers = low.pointwise("exp", shifted)
    total = low.reduce("sum", powers, [dim], True)
    if "log" in str(fx.target):
        return low.pointwise("sub", shifted, low.pointwise("log", total), hint="")
    return low.pointwise("mul", powers, low.pointwise("reciprocal", total), hint="")


@rule("logsumexp")
def logsumexp(low: Lowering, fx: Any) -> str | None:
    x, dims, keep = operand(low, fx.args[0]), fx.args[1], argument(fx, 2, "keepdim", False)
    if not isinstance(x, str):
        return None
    top = low.reduce("max", x, dims, True)
    total = low.reduce("sum", low.pointwise("exp", low.pointwise("sub", x, top)), dims, True)
    kept = low.pointwise("add", low.pointwise("log", total), top, hint="" if keep else "kept")
    return kept if keep else low.view(kept, shape_of(fx), "")


def normalised(low: Lowering, x: str, dims: list[int], eps: float) -> str:
    """(x - mean) / sqrt(var + eps), the variance about the mean."""
    centred = low.pointwise("sub", x, low.mean(x, dims, True), hint="centred")
    square = low.pointwise("mul", centred, centred, hint="square")
    variance = low.mean(square, dims, True, "var")
    scale = low.pointwise("rsqrt", low.pointwise("add", variance, eps, hint="var_eps"))
    return low.pointwise("mul", centred, scale, hint="normalised")


def affine(low: Lowering, x: str, weight: Any, bias: Any) -> str:
    if weight is not None:
        x = low.pointwise("mul", x, weight, hint="weighted")
    return x if bias is None else low.pointwise("add", x, bias, hint="biased")


@rule("layer_norm")
def layer_norm(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    dims = list(range(-len(fx.args[1]), 0))
    weight, bias = (operand(low, argument(fx, k, n)) for k, n in ((2, "weight"), (3, "bias")))
    if not isinstance(x, str):
        return None
    return affine(low, normalised(low, x, dims, argument(fx, 4, "eps", 1e-5)), weight, bias)


@rule("rms_norm")
def rms_norm(low: Lowering, fx: Any) -> str | None:
    x, weight = operand(low, fx.args[0]), operand(low, argument(fx, 2, "weight"))
    eps = argument(fx, 3, "eps")
    if not isinstance(x, str):
        return None
    eps = 1.1920928955078125e-07 if eps is None else eps
    square = low.mean(low.pointwise("mul", x, x, hint="square"), range(-len(fx.args[1]), 0), True)
    scale = low.pointwise("rsqrt", low.pointwise("add", square, eps, hint="mean_eps"))
    return affine(low, low.pointwise("mul", x, scale, hint="normalised"), weight, None)


@rule("group_norm")
def group_norm(low: Lowering, fx: Any) -> str | None:
    x, groups = operand(low, fx.args[0]), fx.args[1]
    if not isinstance(x, str):
        return None
    return _grouped(low, fx, x, groups, (2, 3), argument(fx, 4, "eps", 1e-5))


@rule("instance_norm")
def instance_norm(low: Lowering, fx: Any) -> str | None:
    x, from_input = operand(low, fx.args[0]), argument(fx, 5, "use_input_stats", True)
    if not isinstance(x, str) or not from_input:
        return None
    return _grouped(low, fx, x, shape_of(fx)[1], (1, 2), argument(fx, 7, "eps", 1e-5))


def _grouped(
    low: Lowering, fx: Any, x: str, groups: int, places: tuple[int, int], eps: float
) -> str | None:
    shape = low.shape(x)
    if not fx.args[0].meta["val"].is_contiguous():
        return None
    rows = low.view(x, (shape[0], groups, math.prod(shape[1:]) // groups), "groups")
    y = low.view(normalised(low, rows, [-1], eps), shape, "ungrouped")
    over_channels = (shape[1],) + (1,) * (len(shape) - 2)
    weight, bias = (operand(low, argument(fx, k, "")) for k in places)
    weight, bias = (
        low.view(p, over_channels, "per_channel") if isinstance(p, str) else None
        for p in (weight, bias)
    )
    return affine(low, y, weight, bias)


@rule("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(low: Lowering, fx: Any) -> str | None:
    """In eval mode: one multiply and one add per channel, from parameters alone."""
    native = "native" in str(fx.target)
    x, weight, bias, mean, var = (operand(low, arg) for arg in fx.args[:5])
    if not native and fx.args[5]:
        return None
    if not isinstance(x, str) or not isinstance(mean, str) or not isinstance(var, str):
        return None
    eps = fx.args[6] if native else fx.args[7]
    scale = low.pointwise("rsqrt", low.pointwise("add", var, eps, hint="var_eps"))
    if weight is not None:
        scale = low.pointwise("mul", weight, scale, hint="scale")
    shift = low.pointwise("mul", mean, scale, hint="mean_scaled")
    if bias is not None:
        shift = low.pointwise("sub", bias, shift, hint="shift")
    else:
        shift = low.pointwise("neg", shift, hint="shift")
    over_channels = (low.shape(mean)[0],) + (1,) * (len(low.shape(x)) - 2)
    scale = low.view(scale, over_channels, "scale_")
    shift = low.view(shift, over_channels, "shift_")
    return low.pointwise(
        "add", low.pointwise("mul", x, scale, hint="scaled"), shift, hint="normalised"
    )


@rule("broadcast_tensors")
def broadcast_tensors(low: Lowering, fx: Any) -> str | None:
    """Where nothing has to be broadcast, which is what losses make of equal shapes."""
    names = [operand(low, arg) for arg in fx.args[0]]
    shapes = {shape_of(arg) for arg in fx.args[0]}
    if len(shapes) > 1 or not all(isinstance(name, str) for name in names):
        return None
    low.several[fx.name] = tuple(names)  # type: ignore[arg-type]
    return names[0]  # type: ignore[return-value]


@rule("getitem")
def getitem(low: Lowering, fx: Any) -> str | None:
    """Of a lowered operator: an eval-mode batch norm has one result, others say theirs."""
    source, k = fx.args[0].name, fx.args[1]
    if source in low.several:
        return low.several[source][k]
    made = low.values.get(source)
    lowered = isinstance(made, str) and low.by_name[made].kind != "library"
    return made if lowered and k == 0 else None  # type: ignore[return-value]


@rule("sum", "mean", "amax", "amin")
def reduction(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or not floating(fx.args[0]) or not floating(fx) or not low.shape(x):
        return None
    dims = argument(fx, 1, "dim", None) or list(range(len(low.shape(x))))
    keep = bool(argument(fx, 2, "keepdim", False))
    name = str(fx.target).split(".")[1]
    if name == "mean":
        return low.mean(x, dims, keep, "mean")
    return low.reduce({"sum": "sum", "amax": "max", "amin": "min"}[name], x, dims, keep)


@rule("var", "std")
def variance(low: Lowering, fx: Any) -> str | None:
    x, dims = operand(low, fx.args[0]), argument(fx, 1, "dim")
    unbiased = fx.args[2] if len(fx.args) > 2 else fx.kwargs.get("unbiased", True)
    correction = fx.kwargs.get("correction", 1 if unbiased else 0)
    if not isinstance(x, str) or not isinstance(dims, list | tuple) or not dims:
        return None
    keep = bool(fx.kwargs.get("keepdim", fx.args[3] if len(fx.args) > 3 else False))
    count = math.prod(low.shape(x)[d] for d in dims)
    if count <= correction:
        return None
    centred = low.pointwise("sub", x, low.mean(x, dims, True), hint="centred")
    total = low.reduce("sum", low.pointwise("mul", centred, centred, hint="square"), dims, keep)
    var = low.pointwise("mul", total, 1.0 / (count - correction), hint="var")
    return low.pointwise("sqrt", var, hint="") if "std" in str(fx.target) else var


@rule("norm", "linalg_vector_norm")
def norm(low: Lowering, fx: Any) -> str | None:
    x, p = operand(low, fx.args[0]), argument(fx, 1, "p", 2)
    if not isinstance(x, str) or not floating(fx) or p not in (1, 2, None):
        return None
    dims = argument(fx, 2, "dim", None) or list(range(len(low.shape(x))))
    keep = bool(argument(fx, 3, "keepdim", False))
    if p == 1:
        return low.reduce("sum", low.pointwise("abs", x), dims, keep)
    total = low.reduce("sum", low.pointwise("mul", x, x, hint="square"), dims, keep)
    return low.pointwise("sqrt", total, hint="")


@rule("linear")
def linear(low: Lowering, fx: Any) -> str | None:
    """A library call in one form, so that rewrites can read it."""
    x, weight, bias = (operand(low, argument(fx, k, "")) for k in range(3))
    if not isinstance(x, str) or not isinstance(weight, str) or not floating(fx):
        return None
    return contraction(low, fx, "F.linear({0}, {1})", x, weight, bias)


@rule("conv1d", "conv2d", "conv3d")
def convolution(low: Lowering, fx: Any) -> str | None:
    x, weight, bias = (operand(low, argument(fx, k, "")) for k in range(3))
    if not isinstance(x, str) or not isinstance(weight, str) or not floating(fx):
        return None
    name = str(fx.target).split(".")[1]
    words = "".join(
        f", {key}={fx.args[k]!r}"
        for k, key in ((3, "stride"), (4, "padding"), (5, "dilation"), (6, "groups"))
        if k < len(fx.args)
    )
    return contraction(low, fx, f"F.{name}({{0}}, {{1}}{words})", x, weight, bias)


def contraction(
    low: Lowering, fx: Any, call: str, x: str, weight: str, bias: Operand | None
) -> str:
    args: tuple[str, ...] = (x, weight)
    if isinstance(bias, str):
        args, call = (x, weight, bias), with_bias(call)
    contiguous = bool(fx.meta["val"].is_contiguous())
    return low.add(
        Node(
            low.origin,
            Kind.LIBRARY,
            call,
            args,
            shape_of(fx),
            origin=low.origin,
            contiguous=contiguous,
        )
    )


def with_bias(call: str) -> str:
    """The call of a linear layer or a convolution, with a bias as {2}."""
    return call.replace("{1}", "{1}, bias={2}")


@rule("matmul", "mm")
def product(low: Lowering, fx: Any) -> str | None:
    """diag(a) @ B scales the rows of B; x @ W.T is a linear layer; others stay with the library."""
    left, right = fx.args
    if not floating(fx):
        return None
    if target_of(left) in ("diag", "diag_embed"):
        return _row_scaling(low, fx, left, right)
    if target_of(right) in ("permute", "transpose", "t") and len(shape_of(right)) == 2:
        x, weight = operand(low, left), operand(low, right.args[0])
        swapped = shape_of(right) != shape_of(right.args[0]) or right.args[1:] != ([0, 1],)
        if isinstance(x, str) and isinstance(weight, str) and swapped and len(shape_of(left)) > 1:
            return contraction(low, fx, "F.linear({0}, {1})", x, weight, None)
    return None


def target_of(fx: Any) -> str:
    """`permute` of aten.permute.default; "" for placeholders."""
    parts = str(fx.target).split(".")
    return parts[1] if parts[0] == "aten" else ""


def _row_scaling(low: Lowering, fx: Any, left: Any, right: Any) -> str | None:
    if len(left.args) > 1 or len(shape_of(left.args[0])) != 1:
        return None
    a, b = operand(low, left.args[0]), operand(low, right)
    if not isinstance(a, str) or not isinstance(b, str) or len(low.shape(b)) != 2:
        return None
    return low.pointwise("mul", low.view(a, (low.shape(a)[0], 1), "column"), b, hint="")


@rule("expand")
def expand(low: Lowering, fx: Any) -> str | None:
    """Left out where every reader broadcasts anyhow and has a full-sized operand beside it."""
    x = operand(low, fx.args[0])
    shape = shape_of(fx)
    for user in fx.users:
        others = [a for a in user.args if hasattr(a, "meta") and a is not fx]
        full = any(shape_of(other) == shape for other in others)
        if target_of(user) not in BINARY or not full or shape_of(user) != shape:
            return None
    return x if isinstance(x, str) else None


@rule("adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_avg_pool1d")
def global_average(low: Lowering, fx: Any) -> str | None:
    """Pooling to one value per channel is a mean."""
    x = operand(low, fx.args[0])
    size = fx.args[1]
    pooled = [size] if isinstance(size, int) else list(size)
    if not isinstance(x, str) or not floating(fx) or any(n != 1 for n in pooled):
        return None
    return low.mean(x, range(-len(pooled), 0), True)


@rule("cosine_similarity")
def cosine_similarity(low: Lowering, fx: Any) -> str | None:
    """sum(x y) / (max(|x|, eps) max(|y|, eps))."""
    x, y = operand(low, fx.args[0]), operand(low, fx.args[1])
    dim, eps = argument(fx, 2, "dim", 1), argument(fx, 3, "eps", 1e-8)
    if not isinstance(x, str) or not isinstance(y, str) or low.shape(x) != low.shape(y):
        return None
    dot = low.reduce("sum", low.pointwise("mul", x, y, hint="xy"), [dim], False, "dot")
    norms = []
    for name, side in ((x, "x"), (y, "y")):
        square = low.pointwise("mul", name, name, hint=f"{side}_square")
        length = low.pointwise("sqrt", low.reduce("sum", square, [dim], False), hint=f"{side}_norm")
        norms.append(low.pointwise("maximum", length, eps, hint=f"{side}_length"))
    return low.pointwise("div", dot, low.pointwise("mul", *norms, hint="lengths"), hint="")
