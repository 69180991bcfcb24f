"""Write a node's operation as a C++ expression (CPU and CUDA), or as Python for parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from cuagent.expert.graph.graph import FLOATS, INTEGERS, Node
from cuagent.worker.operators import names_in

INFIX = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "neg": "-{0}", "cast": "{0}",
    "where": "{0} ? {1} : {2}",
    "index_if_equal": "({0} == {1}) | ({0} != {0}) ? {2} : INFINITY",
    "logical_and": "{0} && {1}", "logical_or": "{0} || {1}", "logical_not": "!{0}",
}  # fmt: skip
FUNCTIONS = {
    "exp": "exponential", "exp_nonpositive": "exponential_of_nonpositive",
    "expm1": "exponential_minus_one", "log": "logarithm",
    "log1p": "logarithm_one_plus", "tanh": "hyperbolic_tangent", "erf": "error_function",
    "abs": "absolute", "sqrt": "square_root", "floor": "round_down", "ceil": "round_up",
    "round": "round_to_even", "trunc": "round_to_zero",
    "sin": "sine", "cos": "cosine", "asin": "arc_sine", "acos": "arc_cosine",
    "atan": "arc_tangent", "atan2": "arc_tangent_of_point", "pow": "power",
    "exp2": "exponential_of_two", "remainder": "floored_remainder",
}  # fmt: skip
OF_HALF = ("gelu",)
"""Operations with a faster C++ function for results in half precision."""
TYPES = {
    "float32": "float", "float16": "half", "bfloat16": "bf16", "bool": "bool", "int64": "int64_t",
    "int32": "int32_t", "uint8": "uint8_t", "int8": "int8_t",
}  # fmt: skip
"""C++ type of an element in memory, by dtype."""
ON_INTEGERS = {
    "add", "sub", "mul", "maximum", "minimum", "floor_divide", "remainder", "shift_left",
    "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor",
}  # fmt: skip
"""Operations with a C++ function template on integers (CPU)."""
IDENTITY = {
    "sum": "0.f", "max": "-INFINITY", "min": "INFINITY", "amax": "-INFINITY", "amin": "INFINITY",
}  # fmt: skip
"""Initial value of each reduction in C++.

`amax` and `amin` keep a NaN; `max` and `min` may drop it.
"""
RESERVED = {
    "relu", "sigmoid", "silu", "gelu", "gelu_half", "gelu_tanh", "softplus", "mish", "elu", "selu",
    "leaky_relu", "largest", "difference",
    "relu6", "hardswish", "hardsigmoid", "softsign", "log_sigmoid", "sign", "rsqrt", "reciprocal",
    "maximum", "minimum", "xlogx", "exp", "log", "abs", "tanh", "sqrt", "floor", "ceil", "sin",
    "round", "trunc",
    "cos", "asin", "acos", "atan", "atan2", "exp2", "power", "erf", "pow", "div", "float",
    "int", "long", "double", "bool", "void", "char", "const",
    "for", "if", "else", "while", "do", "return", "static", "new", "delete", "this", "class",
    "struct", "union", "enum", "template", "auto", "switch", "case", "default", "break",
    "continue", "register", "signed", "unsigned", "short", "and", "or", "not", "xor", "min", "max",
    "namespace", "using", "operator", "public", "private", "protected", "virtual", "friend", "asm",
    "typename", "typedef", "typeof", "sizeof", "inline", "extern", "goto", "try", "catch", "throw",
    "volatile", "mutable", "explicit", "export", "true", "false", "nullptr", "alignas", "alignof",
    "constexpr", "decltype", "noexcept", "concept", "requires", "compl", "bitand", "bitor",
    "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t",
    "size_t", "wchar_t", "half", "std", "main", "errno", "assert", "linux", "unix",
    "NAN", "INFINITY", "NULL", "EOF",
    "y0", "y1", "yn", "j0", "j1", "jn", "gamma", "signal", "index", "row", "lane", "block", "warp",
}  # fmt: skip
LOCALS = names_in(
    """
    all at batch begin behind blended buffer carry channel_bias chosen chunk column count
    element end first first_column first_inner first_other first_row flat given head heap held
    input_row item j joined last length line local memory next p part parts place_in_row plane
    position q r rank remainder result results row_sums rows scratch shares slice slot some
    source start step strip tap tap_weights thread thread_slot thread_sums total turn v value
    values width window_row worst COLUMNS Element ITEMS LANES LENGTH ROWS THREADS VECTOR
    """
)
"""Names of variables and constants in generated kernels.

A tensor of the module with such a name, for instance an argument `result`, gets another name in the
kernel.
"""
NUMBERED = re.compile(
    r"[ij]\d+|[pqt]\d+|(count|from|near|real|weight|tap_weight|place|inside)\d+|staged_\d+|tile|k"
    r"|kept_\d+"
)
"""Matches names of kernel variables with a number, such as `i0`, the index of dimension 0."""
PYTHON = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "neg": "-{0}", "cast": "{0}", "rsqrt": "torch.rsqrt({0})", "sqrt": "torch.sqrt({0})",
    "reciprocal": "torch.reciprocal({0})", "exp": "torch.exp({0})", "log": "torch.log({0})",
    "sigmoid": "torch.sigmoid({0})", "tanh": "torch.tanh({0})", "abs": "torch.abs({0})",
    "relu": "torch.relu({0})", "softplus": "F.softplus({0})", "silu": "F.silu({0})",
    "gelu": "F.gelu({0})", "maximum": "torch.maximum({0}, {1})",
}  # fmt: skip
"""Python expression of each operation that can be computed once for parameters."""
PYTHON_REDUCTIONS = {"sum": "sum", "max": "amax", "amax": "amax", "min": "amin", "amin": "amin"}
"""Name of torch's tensor method for each reduction."""


def on_parameters(node: Node, values: Sequence[str]) -> str:
    """Return the Python expression of a pointwise node of parameters.

    `values` are the expressions of its arguments.
    """
    numbers = [not isinstance(a, str) for a in node.args]
    if node.op == "maximum" and any(numbers):  # torch.maximum takes tensors only
        number = numbers.index(True)
        return f"{values[1 - number]}.clamp(min={values[number]})"
    return PYTHON[node.op].format(*values)


def computed_type(dtype: str) -> str:
    """Return the C++ type in which a kernel computes values of `dtype`."""
    return "float" if dtype in FLOATS else TYPES[dtype]


def widened(element: str, dtype: str) -> str:
    """Return the C++ expression that converts `element`, loaded as `dtype`, to the computed
    type.
    """
    return f"to_float({element})" if dtype in ("float16", "bfloat16") else element


def narrowed(value: str, dtype: str) -> str:
    """Return the C++ expression that converts a computed value to `dtype`, rounded to nearest
    even.
    """
    match dtype:
        case "float16":
            return f"to_half({value})"
        case "bfloat16":
            return f"to_bf16({value})"
    return value


def identifier(name: str) -> str:
    """Return a C++ identifier for a node's name that clashes with no keyword, function or variable.

    Different names of ASCII letters give different identifiers.
    """
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    plain = word.rstrip("_")
    taken = plain in RESERVED or plain in LOCALS or NUMBERED.fullmatch(plain)
    return word + "_" if taken else word


def number(value: float | int, whole: bool = False) -> str:
    """Return a number as a C++ literal: float32, or an integer if `whole` is True and it is
    integral.
    """
    if whole and float(value).is_integer():
        return str(int(value))
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    # Nine digits identify a float32.
    text = f"{float(value):.9g}"
    return (text if re.search(r"[.e]", text) else text + ".0") + "f"


def expression(node: Node, operands: list[str]) -> str:
    """Return the C++ expression of a pointwise node."""
    if node.dtype in INTEGERS and node.op in ON_INTEGERS:
        return f"whole_{node.op}<{TYPES[node.dtype]}>({', '.join(operands)})"
    if node.dtype in INTEGERS and node.op == "where":
        kind = TYPES[node.dtype]
        return f"{operands[0]} ? static_cast<{kind}>({operands[1]}) : {operands[2]}"
    if node.op in INFIX:
        return INFIX[node.op].format(*operands)
    function = FUNCTIONS.get(node.op, node.op)
    if node.op in OF_HALF and node.dtype in ("float16", "bfloat16"):
        function += "_half"
    return f"{function}({', '.join(operands)})"
