"""Detect mask fills: constants such as -1e9 that stand for minus infinity in a reference.

On inputs near such a constant, masked elements affect the reference's output, while a kernel that
skips masked elements ignores them. Neither is intended. So the reference is run with enlarged
fills, and a draw on which that changes the answer is not used. A constant that changes the answer
to the task's own inputs is an ordinary number, not a fill.

Not covered: clamps and comparisons, which a kernel must match; numbers in parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cuagent.verify.tensors import FAILURES, is_inexact
from cuagent.verify.trace.hooks import intercept_operators

if TYPE_CHECKING:
    from torch import Tensor, nn

LEAST, MOST = 1e3, 1e30
"""Range of the absolute values of mask fills."""
ENLARGED = 2.0**60
"""Factor by which mask fills are enlarged in the test."""
WRITTEN = frozenset(
    ("masked_fill", "index_fill", "fill", "full", "full_like", "new_full", "scalar_tensor",
     "constant_pad_nd", "scatter", "add", "sub", "mul")
)  # fmt: skip
"""Operators that take a mask fill as an argument."""
SAME = 1e-6
"""Relative difference up to which two outputs count as equal."""

Answers = list["Tensor"]


def has_mask_fills(run: Callable[[], Answers], model: nn.Module) -> bool:
    """Return True if the reference contains mask fills; `run` calls it on the task's own inputs."""
    try:
        with enlarged_fills(model) as found:
            moved = run()
    except FAILURES:
        return False  # the constant is an ordinary number, for example the size of a table
    return bool(found) and equal_up_to_roundoff(moved, run())


@contextmanager
def enlarged_fills(model: nn.Module) -> Iterator[list[float]]:
    """Context in which mask fills in operator arguments and buffers are multiplied by ENLARGED.

    Yields a list of the enlarged constants. It grows as operators run; empty means that none was
    found.
    """
    found: list[float] = []

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if function.overloadpacket.__name__.rstrip("_") not in WRITTEN or _is_integral(
            args, kwargs
        ):
            return function(*args, **kwargs)
        found.extend(value for value in args if _is_fill(value))
        enlarged = [value * ENLARGED if _is_fill(value) else value for value in args]
        return function(*enlarged, **kwargs)

    originals = {buffer: buffer.clone() for buffer in model.buffers() if buffer.is_floating_point()}
    try:
        for buffer in originals:
            fills = (buffer.abs() >= LEAST) & (buffer.abs() < MOST)
            found.extend(buffer[fills].tolist()[:1])
            buffer[fills] *= ENLARGED
        with intercept_operators(call):
            yield found
    finally:
        for buffer, values in originals.items():
            buffer.copy_(values)


def equal_up_to_roundoff(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    """Return True if two outputs are equal up to roundoff; integers, and NaN positions, must be
    equal.
    """
    import torch

    return all(
        torch.allclose(x, y, rtol=SAME, atol=SAME * _largest(y), equal_nan=True)
        if is_inexact(x)
        else torch.equal(x, y)
        for x, y in zip(these, those, strict=True)
    )


def _is_integral(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return True if all tensors among the arguments are integers (an index, a hash): no mask
    fills.
    """
    import torch

    if (dtype := kwargs.get("dtype")) is not None:
        return not dtype.is_floating_point
    return not any(
        is_inexact(x) if isinstance(x, torch.Tensor) else isinstance(x, float) for x in args
    )


def _largest(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _is_fill(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and LEAST <= abs(value) < MOST
        and math.isfinite(value)
    )
