"""The strict rule for each line of a prefix sum by itself.

The bounds of `tolerance` take a tensor as a whole, so that a line of small numbers, or one whose
sum cancels, is held to the errors of the largest line. A prefix sum makes many numbers of each
line, enough for bounds of its own:

    rms(e) <= 2 max(F max(8 sqrt(K') rms(s), rms(m)) + (q + u_o) rms(y), 3 rms(r - y)) + floor

over one line, F the factor of the kind of inputs, m the furthest that an element moves, which is
known in doubt only. The 2 is for what lines of one tensor differ in by chance.

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
CHANCE = 2.0
KNOWN_MOVES = 5
"""Tensors that are given once it is known how far each element moves."""


def worst_line(
    tensors: Sequence[Tensor], kind: Inputs, terms: Terms, unit: float
) -> tuple[float, int]:
    """The largest error of a line over its bound, and which line; 0 where there are no lines.

    `tensors` are x, r, y, s and in doubt m. `unit` is the roundoff of the coarsest arithmetic that
    is honest.
    """
    import torch

    output = tensors[0]
    axes = [dim for dim, size in enumerate(output.shape) if size == terms.prefix]
    told = kind in EXACT or kind in LENIENT
    if told or not axes or terms.prefix < SHORTEST or not output.is_floating_point():
        return 0.0, 0
    info = torch.finfo(output.dtype)
    factor = 1.0 if kind is Inputs.NORMAL else USUAL_FACTOR if kind in USUAL else LOGIC_FACTOR
    gate = PRECISION_GATE * math.sqrt(terms.signed) + coarse(unit) / UNIT
    relative = sequential(terms.longest, kind) + info.eps / 2
    worst, where, begun = 0.0, 0, 0
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
            worst, where = found, begun + line
        begun += x.shape[0]
    return worst, where


def _lines(tensors: Sequence[Tensor], axis: int) -> Iterator[list[Tensor]]:
    """Some lines of each tensor at a time, as [lines, places]."""
    length = tensors[0].shape[axis]
    flat = [tensor.movedim(axis, -1).reshape(-1, length) for tensor in tensors[:KNOWN_MOVES]]
    count = max(1, BLOCK[tensors[0].device.type] // length)
    for begun in range(0, flat[0].shape[0], count):
        yield [tensor[begun : begun + count] for tensor in flat]


def _rms(lines: Tensor) -> Tensor:
    return lines.square().mean(-1).sqrt()
