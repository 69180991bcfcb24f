"""Write single elementwise operations as Triton expressions."""

from __future__ import annotations

from collections.abc import Sequence

ALL = "propagate_nan=tl.PropagateNan.ALL"
EXPRESSIONS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "neg": "-{0}", "cast": "{0}",
    "where": "tl.where({0}, {1}, {2})", "logical_and": "{0} & {1}", "logical_or": "{0} | {1}",
    "logical_not": "{0} == 0", "maximum": f"tl.maximum({{0}}, {{1}}, {ALL})",
    "minimum": f"tl.minimum({{0}}, {{1}}, {ALL})", "exp": "tl.exp({0})",
    "exp_nonpositive": "tl.exp({0})", "expm1": "libdevice.expm1({0})", "log": "tl.log({0})",
    "log1p": "libdevice.log1p({0})", "tanh": "tanh_of_element({0})", "erf": "tl.erf({0})",
    "abs": "tl.abs({0})", "sqrt": "tl.sqrt_rn({0})", "rsqrt": "tl.rsqrt({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "reciprocal": "1.0 / {0}", "relu": "tl.where({0} < 0, 0.0, {0})",
    "sign": "tl.where({0} > 0, 1.0, 0.0) - tl.where({0} < 0, 1.0, 0.0)",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))", "silu": "{0} / (1.0 + tl.exp(-{0}))",
    "gelu": "gelu_of_element({0})",
    "gelu_tanh": "gelu_tanh_of_element({0})",
    "softplus": "softplus_of_element({0})",
    "mish": "mish_of_element({0})",
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
"""Triton expression of each operation that an epilogue may contain. {0}, {1}, ... stand for
operands."""

OF_HALF = {"gelu": "gelu_of_half({0})"}
"""Shorter Triton expressions for operations whose result has half precision."""
FUNCTIONS = {
    "gelu_of_element": '''
@triton.jit
def gelu_of_element(x):
    """Return x Phi(x), as in pointwise_cuda.h: within 2 ulp of |x|."""
    t = tl.abs(x) * 0.707106781
    c = tl.minimum(t, 4.25)
    q = -7.23278917e-06 * c + 9.82887773e-05
    q = q * c - 0.000558194027
    q = q * c + 0.00151726979
    q = q * c + 7.74439856e-06
    q = q * c - 0.0192588227
    q = q * c + 0.102813061
    q = q * c + 0.636613978
    q = q * c + 1.12837944
    tail = 0.5 * tl.exp(-t * q)
    return x * tl.where(x < 0, tail, 1.0 - tail)
''',
    "gelu_of_half": '''
@triton.jit
def gelu_of_half(x):
    """Return x Phi(x), as in pointwise_cuda.h: within 4e-5 of the value, for half precision."""
    t = tl.abs(x) * 0.707106781
    c = tl.minimum(t, 4.0)
    q = -0.000141628972 * c + 0.00255983806
    q = q * c - 0.0206622532
    q = q * c + 0.101788842
    q = q * c + 0.638110143
    q = q * c + 1.12796812
    tail = 0.5 * tl.exp(-t * q)
    return x * tl.where(x < 0, tail, 1.0 - tail)
''',
    "gelu_tanh_of_element": '''
@triton.jit
def gelu_tanh_of_element(x):
    """Return x times the sigmoid of 2 u, with u as in the tanh form of GELU."""
    u = 0.797884561 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * u))
''',
    "tanh_of_element": '''
@triton.jit
def tanh_of_element(x):
    """Return tanh(x) within 2 ulp, without the branch of libdevice's function."""
    a = tl.abs(x)
    s = a * a
    q = -0.00654545119 * s + 0.0212747942
    q = q * s - 0.0539038267
    q = q * s + 0.133330864
    q = q * s - 0.333333319
    value = tl.where(a < 0.56, a * s * q + a, 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0))
    return tl.where(x < 0, -value, value)
''',
    "softplus_of_element": '''
@triton.jit
def softplus_of_element(x):
    """Return log(1 + e^x) within 2 ulp, as max(x, 0) + log(1 + t) with t = e^-|x|."""
    t = tl.exp(-tl.abs(x))
    q = -0.00324402336 * t + 0.0198514542
    q = q * t - 0.0569595189
    q = q * t + 0.106036533
    q = q * t - 0.153055916
    q = q * t + 0.196759389
    q = q * t - 0.249541336
    q = q * t + 0.333299624
    q = q * t - 0.499999024
    q = q * t + 0.999999995
    return tl.where(x > 0, x, 0.0) + t * q
''',
    "mish_of_element": '''
@triton.jit
def mish_of_element(x):
    """Return x tanh(log(1 + e^x)), as in pointwise_cuda.h: within 3 ulp of |x|."""
    e = tl.exp(tl.where(x > 20.0, 20.0, x))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))
''',
}
"""Texts of the Triton functions that expressions call, by name."""


def expression(operator: str, dtype: str, operands: Sequence[str]) -> str:
    """Return the Triton expression of an operation whose result has type `dtype`."""
    is_half = dtype in ("float16", "bfloat16")
    text = OF_HALF.get(operator, "") if is_half else ""
    return (text or EXPRESSIONS[operator]).format(*operands)


def functions_of(kernels: Sequence[str]) -> list[str]:
    """Return the lines of all functions in `FUNCTIONS` that the texts of the kernels call."""
    used = [text for name, text in FUNCTIONS.items() if any(f"{name}(" in k for k in kernels)]
    return [line for text in used for line in (*text.strip().splitlines(), "", "")]
