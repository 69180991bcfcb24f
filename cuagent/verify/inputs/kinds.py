"""Kinds of inputs for a verdict, each drawn from a secret seed.

A derived kind replaces the floating tensors of the task's own inputs and keeps integers, booleans
and scalars; kinds for indices and masks do the reverse. A kind is used only if the reference
accepts its inputs and, except for PLACED and LENIENT kinds, gives a finite answer.

Only zero-mean inputs judge precision. On one-signed sums a sequential fp32 kernel and a TF32 kernel
have errors of the same size (research: ratios 48 and 42); on zero-mean ones they differ by 90
times. Not covered: weights (`weights`), how the inputs of a kind are drawn (`derive`).
"""

from __future__ import annotations

from enum import StrEnum


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
