"""Whether timed calls did the work: each output against the trusted arm's on the same inputs.

Correctness to the last digit was judged before; what could go wrong here is an answer that is old,
missing or for other inputs. So the yardstick is how far apart the right answers for different
inputs are: an output must be much nearer to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.task import Precision

if TYPE_CHECKING:
    from torch import Tensor

NEARER = 0.1
"""Largest distance from the right answer, in distances between right answers."""
ROUNDING = {
    Precision.MATCH: 1e-5,
    Precision.TF32: 1e-3,
    Precision.FP16: 1e-3,
    Precision.BF16: 1e-2,
}
"""Relative error that arithmetic alone may cause."""
TINY = 1e-6
"""For answers that are zero but for rounding."""
FEW = 1e-3
"""Share of integers that may differ: near-ties."""


def disagreement(
    outputs: Sequence[Sequence[Tensor]],
    expected: Sequence[Sequence[Tensor]],
    precision: Precision,
) -> str:
    """One line about the first call whose output is not its own answer, or nothing.

    Both are one list of tensors for each call of the block.
    """
    for call, (given, right) in enumerate(zip(outputs, expected, strict=True)):
        other = expected[call - 1] if len(expected) > 1 else None
        for index, (x, r) in enumerate(zip(given, right, strict=True)):
            if not _agrees(x, r, other[index] if other is not None else None, precision):
                return f"output {index} of call {call} of {len(outputs)} was wrong"
    return ""


def _agrees(x: Tensor, r: Tensor, other: Tensor | None, precision: Precision) -> bool:
    import torch

    if not x.numel() or torch.equal(x, r):
        return True
    if not (r.is_floating_point() or r.is_complex()):
        return float((x != r).double().mean()) <= FEW
    finite = r.isfinite()
    if not bool(x[finite].isfinite().all()):
        return False
    eps = torch.finfo(r.dtype).eps
    scale = _norm(r[finite])
    apart = scale if other is None else _norm((r - other)[finite & other.isfinite()])
    # Where other inputs have nearly the same answer, rounding is what an output may differ by.
    bound = max(NEARER * apart, max(ROUNDING[precision], 8 * eps) * scale)
    return _norm(x[finite] - r[finite]) <= bound + TINY


def _norm(tensor: Tensor) -> float:
    return float(tensor.abs().double().square().sum().sqrt())
