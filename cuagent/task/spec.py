"""Parse the values of `--inputs` and `--init`, without torch.

    --inputs "f32[8,128,512]"             standard normal
    --inputs "f32[8,512] i64[8]<1000"     integers 0..999; `f32[8]<1` is uniform in [0, 1)
    --inputs "[f32[4,4], f32[4]]; 0.5"    nested lists, tuples, dicts; plain Python literals
    --init   "512, 2048, bias=True"       the constructor's arguments as Python literals

`;`, `,` or spaces separate positional arguments. Each is a Python expression, read from its syntax
tree; nothing is evaluated.
"""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass
from typing import Any

from cuagent.task.task import TaskError

TOO_DEEP = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of Python's parser: for other texts than expressions, and for texts nested too deeply."""
DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "c64": "complex64",
    "c128": "complex128",
    "bool": "bool",
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
}
"""torch's dtype name for each short name; torch's own names are accepted too."""

UNBOUNDED_INTEGERS = 10
"""Exclusive upper bound of an integer tensor without `<`; 0..9 are valid indices for most
tables."""


@dataclass(frozen=True)
class TensorSpec:
    """Dtype and shape of a random tensor: standard normal, or uniform in [0, `below`) if that is
    given."""

    dtype: str
    """torch's name, such as "bfloat16"."""
    shape: tuple[int, ...]
    below: float | None = None


def parse_inputs(text: str) -> tuple[Any, ...]:
    """Parse `--inputs`; return one entry per positional argument of forward.

    An entry is a TensorSpec, a literal, or a list, tuple or dict of these. Raises TaskError.
    """
    entries = tuple(_entry(part, text) for part in _split(text))
    if not entries:
        raise TaskError('--inputs is empty; write for instance --inputs "f32[8,512]"')
    return entries


def parse_init(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Parse `--init`; return the positional and the named constructor arguments. Raises
    TaskError."""
    hint = 'write Python literals as in --init "512, 2048, bias=True"'
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("not a list of arguments")
        args = tuple(ast.literal_eval(arg) for arg in call.args)
        named = {str(key.arg): ast.literal_eval(key.value) for key in call.keywords if key.arg}
    except TOO_DEEP as error:
        raise TaskError(f'--init "{text}" is not a list of literals; {hint}') from error
    if len(named) != len(call.keywords):
        raise TaskError(f'--init "{text}": ** is not supported; {hint}')
    return args, named


def _split(text: str) -> list[str]:
    """Split a text at `;`, `,` and spaces outside brackets and quotes."""
    text = re.sub(r"\s*<\s*", "<", text)
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[({":
            depth += 1
        elif character in "])}":
            depth -= 1
        elif depth == 0 and (character in ";," or character.isspace()):
            parts.append("")
            continue
        parts[-1] += character
    return [part for part in parts if part]


def _entry(part: str, text: str) -> Any:
    try:
        # `f32[]`, a tensor without dimensions, is not valid Python.
        tree = ast.parse(re.sub(r"(\w)\[\s*\]", r"\1[()]", part), mode="eval")
        return _value(tree.body, part)
    except TOO_DEEP as error:
        raise TaskError(
            f'--inputs "{text}": cannot read "{part}"; write for instance f32[8,512] or 0.5'
        ) from error


def _value(node: ast.expr, part: str) -> Any:
    match node:
        case ast.Compare(left=left, ops=[ast.Lt()], comparators=[bound]):
            tensor = _value(left, part)
            below = _literal(bound, part)
            if not isinstance(tensor, TensorSpec):
                raise TaskError(f'--inputs: "{part}": `<` bounds a tensor, as in i64[16]<1000')
            if isinstance(below, bool) or not isinstance(below, int | float) or below <= 0:
                raise TaskError(f'--inputs: "{part}": the bound must be a number above 0')
            return TensorSpec(tensor.dtype, tensor.shape, below)
        case ast.Subscript(value=ast.Name(id=name), slice=dims):
            return TensorSpec(_dtype(name, part), _shape(dims, part))
        case ast.List(elts=items):
            return [_value(item, part) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item, part) for item in items)
        case ast.Dict(keys=keys, values=values):
            return {
                _literal(k, part): _value(v, part)
                for k, v in zip(keys, values, strict=True)
                if k is not None
            }
        case _:
            return _literal(node, part)


def _dtype(name: str, part: str) -> str:
    if name in DTYPES.values():
        return name
    if name in DTYPES:
        return DTYPES[name]
    near = difflib.get_close_matches(name, [*DTYPES, *DTYPES.values()], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "use f32, f16, bf16, f64, i64, i32 or bool"
    raise TaskError(f'--inputs: "{part}": no dtype named {name}; {hint}')


def _shape(dims: ast.expr, part: str) -> tuple[int, ...]:
    value = _literal(dims, part)
    shape = value if isinstance(value, tuple) else (value,)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise TaskError(f'--inputs: "{part}": the sizes must be whole numbers, as in f32[8,512]')
    return shape


def _literal(node: ast.expr, part: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise TaskError(
            f'--inputs: "{part}" is neither a tensor such as f32[8,512] nor a Python literal'
        ) from error
