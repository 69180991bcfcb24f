"""Correct the arithmetic of Triton's interpreter: bfloat16, products in TF32, libdevice."""

from __future__ import annotations

from typing import Any

import numpy as np


def exact_arithmetic() -> None:
    """Change Triton's interpreter (3.9) so that it computes as a GPU does.

    It multiplies the bits of bfloat16 as integers, truncates conversions to bfloat16, and keeps all
    bits of operands in TF32, whose last 13 tensor cores ignore.
    """
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def create_dot(_: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        truncates = str(precision).rpartition(".")[2] == "TF32"
        left, right = (_operand(x.data, truncates) for x in (a, b))
        return interpreter.TensorHandle(np.matmul(left, right) + d.data, d.dtype.scalar)

    def converted(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.is_fp32() and target.is_bf16():
            bits = np.ascontiguousarray(data).view(np.uint32)
            nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            return np.where(np.isnan(data), 0x7FFF, nearest).astype(np.uint16)
        return convert(data, source, target, rounding)

    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter._convert_float = converted
    for name in ("expm1", "log1p", "tanh"):
        _add_to_libdevice(name)


def _add_to_libdevice(name: str) -> None:
    """Let a function of libdevice, which the interpreter does not have, compute with numpy."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def function(x: Any) -> Any:
        with np.errstate(over="ignore"):
            return tl.tensor(TensorHandle(getattr(np, name)(x.handle.data), x.dtype), x.type)

    setattr(libdevice, name, function)


def _operand(data: Any, truncates: bool) -> Any:
    """Return an operand of a product in float32; the interpreter keeps bfloat16 as 16-bit
    integers."""
    if data.dtype == np.uint16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    if data.dtype == np.float32 and truncates:
        return (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return data.astype(np.float32)
