"""Write elementwise operations in Triton's language."""

ALL = "propagate_nan=tl.PropagateNan.ALL"
EXPRESSIONS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "neg": "-{0}", "cast": "{0}",
    "where": "tl.where({0}, {1}, {2})", "logical_and": "{0} & {1}", "logical_or": "{0} | {1}",
    "logical_not": "{0} == 0", "maximum": f"tl.maximum({{0}}, {{1}}, {ALL})",
    "minimum": f"tl.minimum({{0}}, {{1}}, {ALL})", "exp": "tl.exp({0})",
    "exp_nonpositive": "tl.exp({0})", "expm1": "libdevice.expm1({0})", "log": "tl.log({0})",
    "log1p": "libdevice.log1p({0})", "tanh": "libdevice.tanh({0})", "erf": "tl.erf({0})",
    "abs": "tl.abs({0})", "sqrt": "tl.sqrt_rn({0})", "rsqrt": "tl.rsqrt({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "reciprocal": "1.0 / {0}", "relu": "tl.where({0} < 0, 0.0, {0})",
    "sign": "tl.where({0} > 0, 1.0, 0.0) - tl.where({0} < 0, 1.0, 0.0)",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))", "silu": "{0} / (1.0 + tl.exp(-{0}))",
    "gelu": "0.5 * {0} * (1.0 + tl.erf({0} * 0.70710678118654752))",
    "gelu_tanh": (
        "0.5 * {0} * (1.0 + libdevice.tanh(0.79788456080286536 * ({0} + 0.044715 * {0} * {0} * "
        "{0})))"
    ),
    "softplus": "tl.where({0} > 20.0, {0}, libdevice.log1p(tl.exp({0})))",
    "mish": "{0} * libdevice.tanh(tl.where({0} > 20.0, {0}, libdevice.log1p(tl.exp({0}))))",
    "elu": "tl.where({0} > 0, {0}, {1} * libdevice.expm1({0}))",
    "selu": (
        "1.0507009873554805 * tl.where({0} > 0, {0}, 1.6732632423543772 * libdevice.expm1({0}))"
    ),
    "leaky_relu": "tl.where({0} > 0, {0}, {0} * {1})",
    "relu6": f"tl.minimum(tl.maximum({{0}}, 0.0, {ALL}), 6.0, {ALL})",
    "hardsigmoid": f"tl.minimum(tl.maximum({{0}} + 3.0, 0.0, {ALL}), 6.0, {ALL}) / 6.0",
    "hardswish": f"{{0}} * tl.minimum(tl.maximum({{0}} + 3.0, 0.0, {ALL}), 6.0, {ALL}) / 6.0",
    "softsign": "{0} / (1.0 + tl.abs({0}))",
}  # fmt: skip
"""Operations of an epilogue; operands are names or numbers."""
