"""Compare the outputs of a candidate task with those that were computed in fp64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.pieces import pieces
from cuagent.synth.reasons import Reason, Rejected

if TYPE_CHECKING:
    from torch import Tensor

LIMITS = {"float32": 1e-3, "bfloat16": 4e-2, "float16": 1e-2}
"""Largest accepted difference of an output from fp64 by dtype, relative to the largest absolute
output."""


def agreement(
    output: Sequence[Tensor], exact: Sequence[Tensor], reason: Reason, dtype: str, device: str
) -> float:
    """Return the largest difference between `output` and `exact` (fp64), relative to the largest
    absolute output.

    Raises Rejected with `reason` if the difference exceeds the limit of the dtype (`LIMITS`).
    """
    limit = LIMITS.get(dtype, LIMITS["float32"])
    if device == "cuda" and dtype == "float32":
        limit *= 4  # TF32 convolutions
    worst = 0.0
    for number, (a, b) in enumerate(zip(output, exact, strict=True)):
        if a.shape != b.shape:
            raise Rejected(reason, f"output {number} has another shape")
        if not a.is_floating_point():
            share = float((a != b).float().mean())
            if share > 0:
                raise Rejected(reason, f"output {number}: {share:.2%} of its integers")
            continue
        difference, scale = _difference(a, b)
        worst = max(worst, found := difference / (scale or 1.0))
        if not found <= limit:  # NaN too
            text = f"{found:.2g} of the largest output; the limit is {limit:g}"
            raise Rejected(reason, text)
    return worst


def _difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return (largest |a - b|, largest |b|), computed in fp64. A NaN in either gives (NaN, ...)."""
    import torch

    found = [
        torch.stack([(x.double() - y.double()).abs().max(), y.double().abs().max()])
        for x, y in pieces(a, b)
    ]
    difference, scale = torch.stack(found).amax(dim=0).tolist()
    return difference, scale
