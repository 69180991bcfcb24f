"""Kinds of inputs for a verdict, each drawn from a secret seed.

A derived kind replaces the floating tensors of the task's own inputs and keeps integers, booleans
and scalars; kinds for indices and masks do the reverse. A kind is used only if the reference
accepts its inputs and, except for PLACED and LENIENT kinds, gives a finite answer.

Only zero-mean inputs judge precision. On one-signed sums a sequential fp32 kernel and a TF32 kernel
have errors of the same size (research: ratios 48 and 42); on zero-mean ones they differ by 90
times. Not covered: weights (`weights`), how one tensor of a kind is drawn (`draws`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
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
"""Mean of large offsets. An offset of 500 is too small to reveal a one-pass variance in fp32."""
OPPOSED_OFFSET = 1e3
"""Absolute mean of tensors with opposed signs."""
LARGE_SIZE, HUGE_SIZE, FAINT_SIZE = 2.0**20, 2.0**60, 2.0**-14
"""Sizes of large, huge and faint numbers. The fourth power of the first is finite in fp32, so that
no honest formula overflows."""
FAR_OFFSET = 5e4
"""Size of numbers beyond those that kernels often use as "very low", and within fp16's range."""


class Inputs(StrEnum):
    """Kinds of inputs. Logs and documents use the values as names, so they must not change."""

    OWN = "own"
    """Inputs from the task's get_inputs or --inputs."""
    NORMAL = "normal"
    """Zero mean, unit variance: judges precision."""
    ONE_SIGNED = "one-signed"
    """Uniform in [0, 1)."""
    MIXED = "mixed magnitude"
    """Normal, with rows and whole samples scaled by 2^-8 .. 2^8: shows a misplaced epsilon."""
    OFFSET = "large offset"
    """Normal around 1e4: shows overflow in softmax, cancellation in a one-pass variance."""
    BELOW = "large negative offset"
    """Normal around -5e4: shows a maximum that starts at zero, or at a number not low enough."""
    LARGE = "large numbers"
    """Rows of size 1e6, and rows all below zero: beyond the range of fp16."""
    TINY = "tiny numbers"
    """Rows of size 1e-4 to 1e-9: divisors are tiny but not zero."""
    FAINT = "tiny numbers throughout"
    """All numbers of size 6e-5: tiny for references that normalise over more than a row."""
    HUGE = "huge numbers"
    """Like LARGE, but of size 1e18. Only for references that accept still larger numbers, so that
    they square none."""
    OPPOSED = "offsets of opposed signs"
    """Normal around 1e3 and -1e3 in alternating tensors: products are very negative."""
    LEVELS = "rows far apart"
    """Normal around 5e4 in half of the rows, around -5e4 in the others."""
    TAILS = "moderate tails"
    """Own inputs with one tensor shifted by 3 to 8 up or down, or all normal with a deviation of 3
    to 8: a mean over many elements would hide errors there."""
    FLAT = "flat rows"
    """Rows of zeros and rows of one value: a normalisation divides by its epsilon only."""
    EDGES = "extremes at the ends"
    """The largest and the least of a line are first or last: shows a maximum that omits one."""
    OTHER_EDGES = "extremes at the other ends"
    """Like EDGES with the signs of the extremes exchanged. In EDGES signs alternate between lines,
    so a single line would have only one of the two."""
    FAR_EDGES = "far extremes at the ends"
    """Like EDGES, but with extremes so large that a softmax whose maximum omits them overflows."""
    CORNERS = "large first and last elements"
    """Large first and last elements of the tensor and of each block: shows a long reduction that
    omits its remainder."""
    OTHER_CORNERS = "large first and last elements below zero"
    """Like CORNERS, but with negative numbers, because a clamp or a margin may hide one sign."""
    INTEGER = "integer"
    """Integers -2 .. 2: with integer weights a sum of products is exact in any precision."""
    CANCELLATION = "cancellation"
    """+-(1 + m / 2^16), half of them negative: with integer weights short sums are exact in fp32,
    and coarser arithmetic loses their result. Further tensors are small integers. If the
    reference's own products keep fewer bits (TF32), so do these numbers."""
    FEW = "few of one sign"
    """Zeros, with about 8 numbers 1 + m / 2^17 in a line, m odd with 9 bits: with integer weights
    their sums are exact in fp32, and 16-bit arithmetic loses the last bit of each. Further tensors
    are small integers."""
    TIES = "ties"
    """Multiples of a half, -2 .. 2, both zeros, and the thresholds of the reference: many equal
    values for argmax, sort and topk."""
    BRINK = "on the brink"
    """One tensor has one number of each row at a threshold of the reference, and the others at zero
    or on one side of the threshold. All other floating tensors are zeros, or ones. The sweep step
    selects the tensor and the case."""
    ENDS = "ends of the domain"
    """Own inputs, many of them set to the ends of their domain: 0 if none is negative, -1 and 1 if
    all are between them. Numbers in 0 .. 1 are never set to 1: as a probability it makes the
    reference so sensitive that roundoff excuses any error."""
    INFINITE = "infinities"
    """Rows with one infinity among usual numbers, and rows without."""
    NAN = "NaN"
    """Rows with one NaN among usual numbers, and rows without."""
    MISSING = "NaN that the reference handles"
    """Rows with one NaN, with several, with only NaN and without: a reference that tests for NaN
    defines the result, and candidates must match it."""
    MOVING = "moving extremes"
    """The largest and the least of each line are in another place in each draw."""
    SORTED = "rising and falling lines"
    """Lines in which each element is the largest so far, or the least so far."""
    EXTREMES = "extreme indices"
    """Integers are mostly the least or the largest that the task draws."""
    ALIKE = "one index throughout"
    """All integers equal the smallest one that the task draws, which may mark padding."""
    MASKS = "full and empty masks"
    """Rows of booleans are all set or all clear."""
    EMPTY = "empty masks"
    """Booleans are all clear: a mean over the set elements divides by zero."""
    SINGLE = "single places of masks"
    """One boolean of a line is set, or all except one; its place changes with each draw."""
    EVERY = "every index"
    """Integers take every value between the least and the largest that the task draws; of negative
    ones only the least, which may mark padding."""

    HALVES = "halves"
    """Multiples of a half, at which round half up, half to even and half away from zero differ. In
    some steps the numbers make a scale before the rounding a power of two."""
    VARIED = "other fixed integers and masks"
    """One integer or boolean tensor that is the same in all own draws is replaced."""


ROUND = (Inputs.TIES, Inputs.BRINK, Inputs.HALVES)
"""Kinds of round numbers whose sums are exact, so that comparisons of them are certain."""
EXACT = (Inputs.INTEGER, Inputs.CANCELLATION, Inputs.FEW, *ROUND)
"""Kinds on which a correct kernel makes no rounding error if the reference makes none."""
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
"""Kinds of inputs that a task itself may draw. Where the reference's answer has NaN or Inf, the
candidate's must have it too."""
SWEEPS = (
    Inputs.TAILS,
    Inputs.VARIED,
    Inputs.HALVES,
    Inputs.MOVING,
    Inputs.SINGLE,
    Inputs.EVERY,
    Inputs.BRINK,
)
"""Kinds whose draws form a sweep, in which each draw has a step."""
MAX_SWEEP = 1 << 8
"""Exclusive upper limit of the number of draws in a sweep. Their seeds are consecutive numbers from
a multiple of this, so that sweeps do not overlap."""
MOST_VALUES = 1 << 22
"""Largest number of values of an integer input that a sweep visits one by one."""


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
"""Kinds on which the terms of a sum are nearly equal, or follow far larger ones. The rounding
errors of a sequential sum then add up instead of cancelling."""
LENIENT = (Inputs.INFINITE, Inputs.NAN)
"""Kinds on which an element counts only if it is finite in the output and in the reference, in both
precisions (`rules.nonfinite`)."""


def sweep_seed(seed: int, step: int) -> int:
    """Return the seed that all draws of a sweep share, from the seed and the step of one draw."""
    return (seed - step) // MAX_SWEEP


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
    mixed_tails: Collection[int] = (),
    *,
    step: int = 0,
    infinities: bool = False,
    uniform_scale: bool = False,
    fraction_bits: int = 23,
) -> list[Tensor]:
    """Return inputs of `kind` with the shapes and dtypes of the task's own.

    ranges: least and largest value of each integer tensor (`ranges_of`).
    line_views: lines of each tensor that extremes move along; those of its axes if empty.
    extreme_size: size of moving extremes.
    thresholds: numbers that the reference compares with, for ties.
    edges: those thresholds at which its result jumps.
    ends: ends of each tensor's domain (`ends_of`).
    fixed: tensors that are the same in all own draws (`varied`).
    scales: numbers by which the reference scales.
    mixed_tails: steps of moderate tails whose mean has both signs.
    infinities: put infinities into draws of missing numbers too.
    step: number of the draw within its sweep.
    uniform_scale: large and huge numbers have one size throughout instead of one per row.
    fraction_bits: bits after the binary point that the reference's products keep (`Terms`).
    """
    if kind is Inputs.OWN:
        return list(own)
    generator = draws.seeded(own, seed)
    bounded = list(zip(own, ranges or [None] * len(own), strict=True))
    if kind is Inputs.TAILS:
        free = [not tensor_ends for tensor_ends in ends or [()] * len(own)]
        mixed = step % len(draws.TAILS) in mixed_tails
        return draws.tails(own, free, step, generator, mixed=mixed)
    if kind is Inputs.HALVES:
        known = halves.cases(scales)
        scale, case = known[step % len(known)]
        return [
            halves.halves(x, scale, case, generator) if x.is_floating_point() else x for x in own
        ]
    if kind is Inputs.VARIED:
        return _other_fixed(own, fixed, step, generator)
    if kind is Inputs.BRINK:
        return _on_the_brink(own, edges or (0.0,), step, generator)
    if kind in SWEEPS or kind is Inputs.SORTED:
        order = draws.seeded(own, sweep_seed(seed, step))
        sweep = SweepStep(kind, step, generator, order, extreme_size)
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
            return [draws.with_values(x, of, generator, 1 / 2) if of else x for x, of in both]
    form = _Form(uniform_scale, infinities, fraction_bits)
    return _all_drawn(kind, own, generator, thresholds, form)


@dataclass(frozen=True)
class SweepStep:
    """One step of a sweep."""

    kind: Inputs
    step: int
    noise: Generator
    order: Generator
    """Generator with the same seed in all steps."""
    extreme_size: float
    """Size of moving extremes."""

    def drawn(self, tensor: Tensor, bounds: Range | None, line_views: Sequence[LineView]) -> Tensor:
        """Return the tensor for this step: `tensor` itself if the kind does not change its
        dtype."""
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
    """Return True if the tensor holds booleans."""
    import torch

    return tensor.dtype is torch.bool


def _other_fixed(
    own: Sequence[Tensor], fixed: Sequence[Fixed | None], step: int, generator: Generator
) -> list[Tensor]:
    """Change one tensor; the step selects the tensor and its change."""
    of_each = [known.changes if known else () for known in fixed]
    rounds = range(max(map(len, of_each), default=0))
    pairs = [(n, changes[at]) for at in rounds for n, changes in enumerate(of_each) if changes[at:]]
    drawn = list(own)
    if pairs:
        number, change = pairs[step % len(pairs)]
        known = fixed[number]
        assert known is not None
        drawn[number] = known.changed(change, generator, step // len(pairs))
    return drawn


def brink_steps(own: Sequence[Tensor], edges: Sequence[float]) -> int:
    """Return the number of steps that cover every tensor, edge and case of `brink`."""
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


@dataclass(frozen=True)
class _Form:
    """Options of `derive` that apply to each tensor separately."""

    uniform_scale: bool
    infinities: bool
    fraction_bits: int


def _all_drawn(
    kind: Inputs,
    own: Sequence[Tensor],
    generator: Generator,
    thresholds: Sequence[float],
    form: _Form,
) -> list[Tensor]:
    """Draw every floating tensor; others stay unchanged.

    Of CANCELLATION and FEW only the first floating tensor is drawn, and further ones are INTEGER.
    """
    drawn: list[Tensor] = []
    for tensor in own:
        if not tensor.is_floating_point():
            drawn.append(tensor)
            continue
        before = sum(other.is_floating_point() for other in own[: len(drawn)])
        what = Inputs.INTEGER if kind in (Inputs.CANCELLATION, Inputs.FEW) and before else kind
        one = _drawn(what, tensor, generator, form)
        if kind is Inputs.TIES and thresholds:
            one = draws.with_values(one, thresholds, generator)
        drawn.append(one + OPPOSED_OFFSET * (-1) ** before if kind is Inputs.OPPOSED else one)
    return drawn


def _drawn(kind: Inputs, tensor: Tensor, generator: Generator, form: _Form) -> Tensor:
    normal = draws.randn(tensor, generator)
    match kind:
        case Inputs.LARGE if form.uniform_scale:
            drawn = normal * LARGE_SIZE
        case Inputs.HUGE if form.uniform_scale:
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
            drawn = draws.missing(normal, generator, infinities=form.infinities)
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
            drawn = signs * (
                1 + (normal * 3).round().clamp(-8, 8) / 2 ** min(16, form.fraction_bits)
            )
        case Inputs.FEW:
            drawn = draws.few(normal, generator, form.fraction_bits)
        case Inputs.TIES:
            drawn = (normal * 2).round().clamp(-4, 4) / 2
        case _:
            drawn = normal
    return drawn.to(tensor.dtype)
