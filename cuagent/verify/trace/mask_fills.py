"""Marks: numbers that stand for minus infinity in a reference, as -1e9 for what a mask hides.

On inputs that come near such a number it is a mark no longer: the reference then counts what it
hides, a kernel that leaves the hidden out does not, and nobody means either. So the reference is
run with its marks further out, and a draw on which that changes the answer says nothing. What
changes the answer to the task's own inputs is no mark but a number like others.

Not covered: clamps and comparisons, which a kernel must do at the same place; numbers in weights.
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
FURTHER = 2.0**60
WRITTEN = frozenset(
    ("masked_fill", "index_fill", "fill", "full", "full_like", "new_full", "scalar_tensor",
     "constant_pad_nd", "scatter", "add", "sub", "mul")
)  # fmt: skip
"""Operators by which such a number comes in."""
SAME = 1e-6

Answers = list["Tensor"]


def has_mask_fills(run: Callable[[], Answers], model: nn.Module) -> bool:
    """Whether the reference has marks, as seen on the task's own inputs."""
    try:
        with enlarged_fills(model) as found:
            moved = run()
    except FAILURES:
        return False  # a number like others: the size of a table, say
    return bool(found) and equal_up_to_roundoff(moved, run())


@contextmanager
def enlarged_fills(model: nn.Module) -> Iterator[list[float]]:
    """Where it is entered, large constants and those in buffers are further out; some of them."""
    found: list[float] = []

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if function.overloadpacket.__name__.rstrip("_") not in WRITTEN or _whole(args, kwargs):
            return function(*args, **kwargs)
        marks = [value for value in args if _is_mark(value)]
        found.extend(marks)
        moved = [value * FURTHER if _is_mark(value) else value for value in args]
        return function(*moved, **kwargs)

    kept = {buffer: buffer.clone() for buffer in model.buffers() if buffer.is_floating_point()}
    try:
        for buffer in kept:
            marked = (buffer.abs() >= LEAST) & (buffer.abs() < MOST)
            found.extend(buffer[marked].tolist()[:1])
            buffer[marked] *= FURTHER
        with intercept_operators(call):
            yield found
    finally:
        for buffer, values in kept.items():
            buffer.copy_(values)


def equal_up_to_roundoff(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    """Whether two answers are one but for roundoff; integers and NaN must be equal."""
    import torch

    return all(
        torch.allclose(x, y, rtol=SAME, atol=SAME * _largest(y), equal_nan=True)
        if is_inexact(x)
        else torch.equal(x, y)
        for x, y in zip(these, those, strict=True)
    )


def _whole(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether integers are computed: an index, a hash. No mark of theirs is a large number."""
    import torch

    if (dtype := kwargs.get("dtype")) is not None:
        return not dtype.is_floating_point
    return not any(
        is_inexact(x) if isinstance(x, torch.Tensor) else isinstance(x, float) for x in args
    )


def _largest(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _is_mark(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and LEAST <= abs(value) < MOST
        and math.isfinite(value)
    )
