"""What a candidate is tried on: kinds of inputs, each drawn from a secret seed.

A derived kind replaces the floating tensors of the task's own inputs and leaves integers, booleans
and scalars as they are; the kinds for indices and masks do it the other way round. Each is used
only where the reference takes it, and only where its answer is finite besides, but for PLACED and
LENIENT kinds.

Only zero-mean inputs judge precision: on one-signed sums a sequential fp32 kernel and a TF32 kernel
have errors of one size (research: ratios 48 and 42), on zero-mean ones they lie 90 apart. Not
covered: weights (`weights.py`), how one tensor of a kind is made (`draws.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from cuagent.verify.inputs import draws
from cuagent.verify.inputs.draws import LineView, axes
from cuagent.verify.inputs.ranges import Ends, Range
from cuagent.verify.inputs.varied import Fixed
from cuagent.verify.trace import halves

if TYPE_CHECKING:
    from torch import Generator, Tensor

LARGE_OFFSET = 1e4
"""An offset of 500 is too small to show a one-pass variance in fp32."""
OPPOSED_OFFSET = 1e3
LARGE_SIZE, HUGE_SIZE, FAINT_SIZE = 2.0**20, 2.0**60, 2.0**-14
"""Fourth powers of the first still have room in fp32, so that no honest formula overflows there."""
FAR_OFFSET = 5e4
"""Beyond what often serves as "very low" in a kernel, and within what fp16 holds."""


class Inputs(StrEnum):
    """Kinds of inputs."""

    OWN = "own"
    """What the task's get_inputs or --inputs draws."""
    NORMAL = "normal"
    """Zero mean, unit variance: judges precision."""
    ONE_SIGNED = "one-signed"
    """Uniform in [0, 1)."""
    MIXED = "mixed magnitude"
    """Normal, rows and whole samples scaled by 2^-8 .. 2^8: where an epsilon stands."""
    OFFSET = "large offset"
    """Normal around 1e4: overflow in softmax, cancellation in a one-pass variance."""
    BELOW = "large negative offset"
    """Normal around -5e4: a maximum that starts at zero, or at a number that seemed low enough."""
    LARGE = "large numbers"
    """Rows of the size of 1e6, and rows all below zero: past what fp16 holds."""
    TINY = "tiny numbers"
    """Rows of the size of 1e-4 to 1e-9: what is divided by is next to nothing, and yet no zero."""
    FAINT = "tiny numbers throughout"
    """All of the size of 6e-5: what is normalised as a whole and not by rows is next to nothing."""
    HUGE = "huge numbers"
    """The same of 1e18, where the reference bears still more: it squares nothing then."""
    OPPOSED = "offsets of opposed signs"
    """Normal around 1e3 and -1e3 by turns, tensor by tensor: products are very negative."""
    LEVELS = "rows far apart"
    """Normal around 5e4 in half of the rows, around -5e4 in the others: rows share nothing."""
    TAILS = "moderate tails"
    """The task's own numbers, of which one tensor is shifted by 3 to 8 either way, or all are
    normal with a deviation of 3 to 8: a mean over many elements hides what goes wrong there."""
    FLAT = "flat rows"
    """Rows of zeros, rows of one value: nothing to normalise by but an epsilon."""
    EDGES = "extremes at the ends"
    """The largest and the least of a line stand first or last: a maximum that leaves one out."""
    OTHER_EDGES = "extremes at the other ends"
    """The same with first and last exchanged: a task may have one line only."""
    FAR_EDGES = "far extremes at the ends"
    """So far that a softmax whose maximum leaves them out overflows."""
    CORNERS = "large first and last elements"
    """Of the tensor and of each block of it: a long reduction that leaves out its last rest."""
    OTHER_CORNERS = "large first and last elements below zero"
    """The same, as a clamp or a margin may hide numbers of one sign."""
    INTEGER = "integer"
    """-2 .. 2; with integer weights a sum of products is exact in every admitted arithmetic."""
    CANCELLATION = "cancellation"
    """+-(1 + m / 2^16), half of them negative: with integer weights short sums are exact in fp32,
    and what is left of them is lost in coarser arithmetic. Further tensors are small integers."""
    FEW = "few of one sign"
    """Zeros, and some 8 in a line that are 1 + m / 2^17, m odd with 9 bits; with integer weights
    their sums are exact in fp32, and arithmetic of 16 bits loses the last of each. Further tensors
    are small integers."""
    TIES = "ties"
    """Multiples of a half, -2 .. 2, and what the reference compares with: many equal values for
    argmax, sort and topk; both zeros."""
    BRINK = "on the brink"
    """All numbers but one of a row on one side of what the reference compares with, and that one
    at it, for one tensor after the other; the others are all zero, or one."""
    ENDS = "ends of the domain"
    """The task's own, many of them zero where none is below, or -1 and 1 where none is beyond. Not
    1 where they lie in 0 .. 1: as a probability it is as steep as can be, and roundoff excuses."""
    INFINITE = "infinities"
    """Rows with one infinity among usual numbers, and rows without."""
    NAN = "NaN"
    """The same with NaN."""
    MISSING = "NaN that the reference handles"
    """Rows with one, with several, of nothing else, and without: where a reference asks for NaN, it
    says what becomes of them, and candidates are held to that."""
    MOVING = "moving extremes"
    """The largest and the least of each line in another place from draw to draw."""
    SORTED = "rising and falling lines"
    """Each element is the largest so far, or the least so far."""
    EXTREMES = "extreme indices"
    """Integers are the least and the largest that the task draws, most of them several times."""
    ALIKE = "one index throughout"
    """Integers are all the least that the task draws, which may mark what does not count."""
    MASKS = "full and empty masks"
    """Rows of booleans are all set or all clear."""
    EMPTY = "empty masks"
    """Booleans are all clear: nothing to divide by."""
    SINGLE = "single places of masks"
    """One boolean of a line is set, or all but one: another one from draw to draw."""
    EVERY = "every index"
    """Integers take on every value between the least and the largest that the task draws; of
    negative ones the least only, which may be a mark for what does not count."""

    HALVES = "halves"
    """Multiples of a half, by turns such that a scale before a rounding is a power of two: half up,
    half to even and half away from zero differ there."""
    VARIED = "other fixed integers and masks"
    """One integer or boolean tensor that the task always gives alike is another one."""


ROUND = (Inputs.TIES, Inputs.BRINK, Inputs.HALVES)
"""Kinds of such round numbers that comparisons of what is added up from them are certain."""
EXACT = (Inputs.INTEGER, Inputs.CANCELLATION, Inputs.FEW, *ROUND)
"""Kinds on which honest arithmetic may make no error at all."""
AMONG_OWN = (Inputs.OWN, Inputs.ENDS, Inputs.TAILS)
"""Kinds that keep some of the task's own floating numbers."""
PLACED = (
    Inputs.OWN,
    Inputs.MISSING,
    Inputs.EXTREMES,
    Inputs.ALIKE,
    Inputs.MASKS,
    Inputs.EMPTY,
    Inputs.SINGLE,
    Inputs.EVERY,
)
"""Kinds that a task may draw by itself: if the reference is not finite, neither is a candidate."""
SWEEPS = (
    Inputs.TAILS,
    Inputs.VARIED,
    Inputs.HALVES,
    Inputs.MOVING,
    Inputs.SINGLE,
    Inputs.EVERY,
    Inputs.BRINK,
)
"""Kinds of which several draws belong together: they have all but the low bits of the seed in
common, and these say which turn it is."""
MAX_SWEEP = 1 << 8
"""More draws than may belong together."""
MOST_VALUES = 1 << 22
"""Of an integer input, that are dealt out one by one."""


BIASED = (
    Inputs.MIXED,
    Inputs.OFFSET,
    Inputs.BELOW,
    Inputs.LARGE,
    Inputs.HUGE,
    Inputs.OPPOSED,
    Inputs.LEVELS,
    Inputs.EDGES,
    Inputs.OTHER_EDGES,
    Inputs.FAR_EDGES,
    Inputs.MOVING,
)
"""Kinds on which the terms of a sum are nearly equal, or follow ones that are far larger: roundings
of a sum, one term after the other, then add up instead of cancelling."""
LENIENT = (Inputs.INFINITE, Inputs.NAN)
"""Kinds on which only numbers among numbers are held against a candidate (`specials`)."""


def derive(
    kind: Inputs,
    own: Sequence[Tensor],
    seed: int,
    ranges: Sequence[Range | None] = (),
    line_views: Sequence[Sequence[LineView]] = (),
    extreme_size: float = draws.EXTREME_SIZE,
    thresholds: Sequence[float] = (),
    edges: Sequence[float] = (),
    ends: Sequence[Ends] = (),
    fixed: Sequence[Fixed | None] = (),
    scales: Sequence[float] = (),
    *,
    uniform_scale: bool = False,
) -> list[Tensor]:
    """Inputs of `kind` in the forms of the task's own.

    `ranges` are the least and largest value of each integer tensor (`ranges_of`), `ways` the lines
    of each tensor that extremes are put into, by turns; those along its axes where none are given.
    `reach` is how far moving extremes stand out, `thresholds` are numbers that ties are to hold,
    `edges` those of them beside which results jump, `ends` those of each tensor's own range
    (`ends_of`), `fixed` what is known of those that are always alike (`varied`), `scales`
    are numbers by which the reference scales. `even`: numbers of other sizes than usual are of one
    size throughout.
    """
    if kind is Inputs.OWN:
        return list(own)
    generator = draws.seeded(own, seed)
    bounded = list(zip(own, ranges or [None] * len(own), strict=True))
    if kind is Inputs.TAILS:
        free = [not tensor_ends for tensor_ends in ends or [()] * len(own)]
        return draws.tails(own, free, seed % MAX_SWEEP, generator)
    if kind is Inputs.HALVES:
        known = halves.cases(scales)
        scale, case = known[seed % MAX_SWEEP % len(known)]
        return [
            halves.halves(x, scale, case, generator) if x.is_floating_point() else x for x in own
        ]
    if kind is Inputs.VARIED:
        return _other_fixed(own, fixed, seed % MAX_SWEEP, generator)
    if kind is Inputs.BRINK:
        return _on_the_brink(own, edges or (0.0,), seed % MAX_SWEEP, generator)
    if kind in SWEEPS or kind is Inputs.SORTED:
        sweep = Sweep(
            kind, seed % MAX_SWEEP, generator, draws.seeded(own, seed // MAX_SWEEP), extreme_size
        )
        return [
            sweep.drawn(tensor, bounds, known or axes(tensor))
            for (tensor, bounds), known in zip(bounded, line_views or [()] * len(own), strict=True)
        ]
    match kind:
        case Inputs.EXTREMES:
            return [draws.extreme(x, ends, generator) if ends else x for x, ends in bounded]
        case Inputs.ALIKE:
            return [x.clone().fill_(ends[0]) if ends else x for x, ends in bounded]
        case Inputs.MASKS:
            return [draws.masked(x, generator) if boolean(x) else x for x in own]
        case Inputs.EMPTY:
            return [x & False if boolean(x) else x for x in own]
        case Inputs.ENDS:
            both = zip(own, ends or [()] * len(own), strict=True)
            return [draws.strewn(x, of, generator, 1 / 2) if of else x for x, of in both]
    return _all_drawn(kind, own, generator, thresholds, uniform_scale=uniform_scale)


@dataclass(frozen=True)
class Sweep:
    """One turn of the draws that belong together."""

    kind: Inputs
    step: int
    noise: Generator
    order: Generator
    """The same for all turns."""
    extreme_size: float
    """Of moving extremes."""

    def drawn(self, tensor: Tensor, bounds: Range | None, line_views: Sequence[LineView]) -> Tensor:
        """A tensor of another type than the kind is for stays as it is."""
        line_view, step = line_views[self.step % len(line_views)], self.step // len(line_views)
        if self.kind is Inputs.EVERY:
            few = bounds is not None and bounds[1] - bounds[0] < MOST_VALUES
            return draws.every(tensor, bounds, self.step, self.order) if bounds and few else tensor
        if self.kind is Inputs.SINGLE:
            return draws.single(tensor, line_view, step, self.order) if boolean(tensor) else tensor
        if not tensor.is_floating_point():
            return tensor
        normal = draws.randn(tensor, self.noise)
        if self.kind is Inputs.SORTED:
            return draws.sorted_lines(normal, line_views[0], self.order).to(tensor.dtype)
        return draws.moving(normal, self.extreme_size, line_view, step, self.order).to(tensor.dtype)


def boolean(tensor: Tensor) -> bool:
    import torch

    return tensor.dtype is torch.bool


def _other_fixed(
    own: Sequence[Tensor], fixed: Sequence[Fixed | None], step: int, generator: Generator
) -> list[Tensor]:
    """One tensor changed; the tensors and their changes come by turns."""
    of_each = [known.changes if known else () for known in fixed]
    rounds = range(max(map(len, of_each), default=0))
    pairs = [(n, changes[at]) for at in rounds for n, changes in enumerate(of_each) if changes[at:]]
    drawn = list(own)
    if pairs:
        number, change = pairs[step % len(pairs)]
        known = fixed[number]
        assert known is not None
        drawn[number] = known.changed(change, generator)
    return drawn


def brink_steps(own: Sequence[Tensor], edges: Sequence[float]) -> int:
    """After which each tensor has stood there in every way."""
    floats = sum(x.is_floating_point() for x in own)
    return floats * min(floats, 2) * draws.BRINKS * len(edges)


def _on_the_brink(
    own: Sequence[Tensor], edges: Sequence[float], step: int, generator: Generator
) -> list[Tensor]:
    floats = [number for number, x in enumerate(own) if x.is_floating_point()]
    step, at = divmod(step, len(floats))
    others, case = divmod(step, draws.BRINKS * len(edges))
    drawn = [x.new_full(x.shape, others % 2) if x.is_floating_point() else x for x in own]
    drawn[floats[at]] = draws.brink(own[floats[at]], edges, case, generator)
    return drawn


def _all_drawn(
    kind: Inputs,
    own: Sequence[Tensor],
    generator: Generator,
    thresholds: Sequence[float],
    *,
    uniform_scale: bool,
) -> list[Tensor]:
    """Every real tensor anew; what only one of several tells (a sum that cancels) by the first."""
    drawn: list[Tensor] = []
    for tensor in own:
        if not tensor.is_floating_point():
            drawn.append(tensor)
            continue
        before = sum(other.is_floating_point() for other in own[: len(drawn)])
        what = Inputs.INTEGER if kind in (Inputs.CANCELLATION, Inputs.FEW) and before else kind
        one = _drawn(what, tensor, generator, uniform_scale=uniform_scale)
        if kind is Inputs.TIES and thresholds:
            one = draws.strewn(one, thresholds, generator)
        drawn.append(one + OPPOSED_OFFSET * (-1) ** before if kind is Inputs.OPPOSED else one)
    return drawn


def _drawn(kind: Inputs, tensor: Tensor, generator: Generator, *, uniform_scale: bool) -> Tensor:
    normal = draws.randn(tensor, generator)
    match kind:
        case Inputs.LARGE if uniform_scale:
            drawn = normal * LARGE_SIZE
        case Inputs.HUGE if uniform_scale:
            drawn = -HUGE_SIZE * (1 + normal.abs())
        case Inputs.TINY:
            drawn = draws.tiny(normal, generator)
        case Inputs.FAINT:
            drawn = normal * FAINT_SIZE
        case Inputs.ONE_SIGNED:
            drawn = draws.uniform(normal)
        case Inputs.MIXED:
            drawn = draws.mixed(normal, generator)
        case Inputs.OFFSET:
            drawn = normal + LARGE_OFFSET
        case Inputs.BELOW:
            drawn = normal - FAR_OFFSET
        case Inputs.LARGE:
            drawn = draws.large(normal, LARGE_SIZE, generator)
        case Inputs.HUGE:
            drawn = draws.large(normal, HUGE_SIZE, generator)
        case Inputs.INFINITE:
            drawn = draws.planted(normal, (math.inf, 0.0, -math.inf), generator)
        case Inputs.NAN:
            drawn = draws.planted(normal, (math.nan, 0.0), generator)
        case Inputs.MISSING:
            drawn = draws.missing(normal, generator)
        case Inputs.LEVELS:
            drawn = draws.levels(normal, FAR_OFFSET, generator)
        case Inputs.FLAT:
            drawn = draws.flat(normal, generator)
        case Inputs.EDGES:
            drawn = draws.edges(normal, draws.EXTREME_SIZE)
        case Inputs.OTHER_EDGES:
            drawn = draws.edges(normal, -draws.EXTREME_SIZE)
        case Inputs.FAR_EDGES:
            first = float(draws.randn(normal.new_empty(1), generator)) > 0
            drawn = draws.edges(
                normal, draws.FAR_EXTREME_SIZE if first else -draws.FAR_EXTREME_SIZE
            )
        case Inputs.CORNERS | Inputs.OTHER_CORNERS:
            drawn = draws.corners(normal, 1 if kind is Inputs.CORNERS else -1)
        case Inputs.INTEGER:
            drawn = (normal * 1.2).round().clamp(-2, 2)
        case Inputs.CANCELLATION:
            signs = draws.balanced(normal, generator)
            drawn = signs * (1 + (normal * 3).round().clamp(-8, 8) / 2**16)
        case Inputs.FEW:
            drawn = draws.few(normal, generator)
        case Inputs.TIES:
            drawn = (normal * 2).round().clamp(-4, 4) / 2
        case _:
            drawn = normal
    return drawn.to(tensor.dtype)
