"""Strict rule for each line of a prefix sum.

The bounds of `tolerance` take a tensor as a whole, so they would hold a line of small numbers, or
one whose sum cancels, to the errors of the largest line. A prefix sum gives enough numbers in each
line for separate bounds:

    rms(e) <= 2 max(F max(8 sqrt(K') rms(s), rms(m)) + (q + u_o) rms(y), 3 rms(r - y)) + floor

over one line, with the symbols of `tolerance`: e error, s spread, r reference, y fp64 answer. F is
the factor of the kind of inputs, m the sensitivity of an element (0 until known). The 2 covers
chance differences between the lines of one tensor.

Not covered: lines shorter than SHORTEST; exact draws, which have a bound on each element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cuagent.verify.inputs.kinds import EXACT, LENIENT, Inputs
from cuagent.verify.rules.bounds import (
    LEAST,
    LOGIC_FACTOR,
    OWN_ERROR,
    PRECISION_GATE,
    USUAL,
    USUAL_FACTOR,
    coarse,
    number,
    sequential,
)
from cuagent.verify.tensors import BLOCK, UNIT

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.verify.trace.reductions import Terms

SHORTEST = 64
"""Least length of a line that is judged by its own bounds; shorter lines have a noisy rms."""
CHANCE = 2.0
"""Factor on the bounds for chance differences between the lines of a tensor."""
WITH_SENSITIVITY = 5
"""Number of tensors per output once the sensitivity is known.

They are the candidate's and the reference's output, the fp64 answer, its spread and sensitivity.
"""


def worst_line(
    tensors: Sequence[Tensor], kind: Inputs, terms: Terms, unit: float
) -> tuple[float, int]:
    """Return the largest ratio of a line's rms error to its bound, and the number of that line.

    (0, 0) if the rule does not apply to this output. `tensors` are x, r, y, s and, once the
    sensitivity is known, m. `unit` is the unit roundoff of the coarsest honest arithmetic.
    """
    import torch

    output = tensors[0]
    axes = [dim for dim, size in enumerate(output.shape) if size == terms.prefix]
    skipped = kind in EXACT or kind in LENIENT
    if skipped or not axes or terms.prefix < SHORTEST or not output.is_floating_point():
        return 0.0, 0
    info = torch.finfo(output.dtype)
    factor = 1.0 if kind is Inputs.NORMAL else USUAL_FACTOR if kind in USUAL else LOGIC_FACTOR
    gate = PRECISION_GATE * math.sqrt(terms.signed) + coarse(unit) / UNIT
    relative = sequential(terms.longest, kind) + info.eps / 2
    worst, where, start = 0.0, 0, 0
    for block in _lines(tensors, axes[-1]):
        x, r, y, s, *moved = (part.double() for part in block)
        finite = x.isfinite() & r.isfinite() & y.isfinite()
        error, own, value, spread = (
            _rms(part.where(finite, 0)) for part in (x - y, r - y, y, s.nan_to_num(0.0, 0.0, 0.0))
        )
        honest = gate * spread
        if moved:
            honest = honest.maximum(_rms(moved[0].nan_to_num(0.0, 0.0, 0.0)))
        bound = CHANCE * (factor * honest + relative * value).maximum(OWN_ERROR * own)
        ratio = error / (bound + max(info.tiny, LEAST))
        line = int(ratio.argmax())
        if (found := number(ratio[line])) > worst:
            worst, where = found, start + line
        start += x.shape[0]
    return worst, where


def _lines(tensors: Sequence[Tensor], axis: int) -> Iterator[list[Tensor]]:
    """Yield views of the tensors as [lines, length of `axis`], in groups of about BLOCK
    elements.
    """
    length = tensors[0].shape[axis]
    flat = [tensor.movedim(axis, -1).reshape(-1, length) for tensor in tensors[:WITH_SENSITIVITY]]
    count = max(1, BLOCK[tensors[0].device.type] // length)
    for start in range(0, flat[0].shape[0], count):
        yield [tensor[start : start + count].to(flat[0].device) for tensor in flat]


def _rms(lines: Tensor) -> Tensor:
    return lines.square().mean(-1).sqrt()
