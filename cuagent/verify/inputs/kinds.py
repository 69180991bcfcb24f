"""Kinds of inputs on which a verdict calls the candidate, each drawn from a secret seed.

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
    """Kinds of inputs.

    Logs and documents contain their values as names, so the values must not change.
    """

    OWN = "own"
    """Inputs from the task's get_inputs or --inputs."""
    NORMAL = "normal"
    """Standard normal numbers (zero mean, unit variance); this kind judges precision."""
    ONE_SIGNED = "one-signed"
    """Uniform numbers in [0, 1)."""
    MIXED = "mixed magnitude"
    """Normal numbers, with rows and whole samples scaled by 2^-8 .. 2^8.

    They show an epsilon that is added at the wrong place.
    """
    OFFSET = "large offset"
    """Normal numbers with mean 1e4; they show overflow in softmax, and cancellation in a one-pass
    variance.
    """
    BELOW = "large negative offset"
    """Normal numbers with mean -5e4.

    They show a search for the maximum that starts at zero or at another number that is not low
    enough.
    """
    LARGE = "large numbers"
    """Rows of magnitude 1e6, some with only negative numbers: beyond the range of fp16."""
    TINY = "tiny numbers"
    """Rows of magnitude 1e-4 to 1e-9, so that divisors are tiny but not zero."""
    FAINT = "tiny numbers throughout"
    """Numbers of magnitude 6e-5 throughout, for references that normalise over more than a row.

    If the outputs would be tiny too, only one tensor is tiny, with a norm of 1/4; another one in
    each draw.
    """
    HUGE = "huge numbers"
    """Like LARGE, with magnitude 1e18.

    Only for references that accept still larger numbers, so that they square none.
    """
    OPPOSED = "offsets of opposed signs"
    """Normal numbers with mean 1e3 and -1e3 in alternating tensors: products are very negative."""
    LEVELS = "rows far apart"
    """Normal numbers with mean 5e4 in half of the rows and -5e4 in the others."""
    TAILS = "moderate tails"
    """Own inputs with one tensor shifted by 3 to 8 up or down, or all normal with a deviation of 3
    to 8.

    A mean over many elements would hide errors for such numbers in other kinds.
    """
    FLAT = "flat rows"
    """Rows of zeros and rows that repeat one value: a normalisation divides by its epsilon only."""
    EDGES = "extremes at the ends"
    """The largest and the least element of a line are first or last.

    They show a maximum that omits the first or the last element.
    """
    OTHER_EDGES = "extremes at the other ends"
    """Like EDGES with the signs of the extremes exchanged.

    In EDGES signs alternate between lines, so a single line would have only one of the two.
    """
    FAR_EDGES = "far extremes at the ends"
    """Like EDGES, with extremes so large that a softmax whose maximum omits them overflows."""
    CORNERS = "large first and last elements"
    """Large first and last elements of the tensor and of each block.

    They show a long reduction that omits its remainder.
    """
    OTHER_CORNERS = "large first and last elements below zero"
    """Like CORNERS with negative numbers, because a clamp or a margin may hide one sign."""
    INTEGER = "integer"
    """Integers -2 .. 2; with integer weights a sum of products is exact in any precision."""
    CANCELLATION = "cancellation"
    """Numbers +-(1 + m / 2^16), half of them negative.

    With integer weights short sums are exact in fp32, and coarser arithmetic loses their result.
    Further tensors are small integers. If the reference's own products keep fewer bits (TF32), so
    do these numbers.
    """
    FEW = "few of one sign"
    """Zeros, with about 8 numbers 1 + m / 2^17 in a line, m odd with 9 bits.

    With integer weights their sums are exact in fp32, and 16-bit arithmetic loses the last bit of
    each. Further tensors are small integers.
    """
    TIES = "ties"
    """Multiples of a half, -2 .. 2, both zeros, and the thresholds of the reference.

    They contain many equal values for argmax, sort and topk.
    """
    BRINK = "on the brink"
    """Inputs at a threshold of the reference.

    One tensor has one number of each row at the threshold, and the others at zero or on one side of
    it. All other floating tensors are zeros, or ones. The sweep step selects the tensor and the
    case.
    """
    ENDS = "ends of the domain"
    """Own inputs, with many numbers set to the ends of their domain.

    The ends are 0 if no number is negative, -1 and 1 if all are between them. Numbers in 0 .. 1 are
    never set to 1: as a probability it makes the reference so sensitive that roundoff excuses any
    error.
    """
    INFINITE = "infinities"
    """Normal numbers; some rows contain one infinity."""
    NAN = "NaN"
    """Normal numbers; some rows contain one NaN."""
    MISSING = "NaN that the reference handles"
    """Rows with one NaN, with several, with only NaN and without, if the reference tests for NaN.

    Such a reference defines the result, and candidates must match it.
    """
    MOVING = "moving extremes"
    """The largest and the least element of each line are at another position in each draw of a
    sweep.
    """
    SORTED = "rising and falling lines"
    """Sorted lines, ascending or descending: each element is the largest so far, or the least."""
    EXTREMES = "extreme indices"
    """Integers that are mostly the least or the largest that the task's get_inputs returns."""
    ALIKE = "one index throughout"
    """Integers that all equal the least that the task's get_inputs returns, which may mark
    padding.
    """
    MASKS = "full and empty masks"
    """Boolean rows that are all True or all False."""
    EMPTY = "empty masks"
    """Booleans that are all False: a mean over the True elements divides by zero."""
    SINGLE = "single places of masks"
    """Lines of booleans with a single True or a single False, at another position in each draw."""
    EVERY = "every index"
    """Integers that take every value from the least to the largest that get_inputs returns.

    Of negative integers only the least is drawn, which may mark padding.
    """

    HALVES = "halves"
    """Multiples of a half, at which round half up, half to even and half away from zero differ.

    In some steps the numbers make a scale before the rounding a power of two.
    """
    VARIED = "other fixed integers and masks"
    """Own inputs in which one tensor is changed that is the same in all results of get_inputs.

    The tensor contains integers or booleans.
    """


ROUND = (Inputs.TIES, Inputs.BRINK, Inputs.HALVES)
"""Kinds of round numbers whose sums are exact, so that comparisons of them are certain."""
EXACT = (Inputs.INTEGER, Inputs.CANCELLATION, Inputs.FEW, *ROUND)
"""Kinds on which a correct kernel makes no rounding error if the reference makes none."""
UNPERTURBED = (Inputs.ALIKE,)
"""Kinds that no perturbation of the weights may move, unless they are shaken weights.

A norm over copies of one embedded number is exactly its bias. If that is zero, any roundoff is an
error without a bound.
"""
AMONG_OWN = (Inputs.OWN, Inputs.ENDS, Inputs.TAILS)
"""Kinds in which some floating numbers are those of the task's get_inputs."""
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
"""Kinds of inputs that the task's get_inputs might return itself.

Where the reference's answer has NaN or Inf on them, the candidate's must have it too.
"""
SWEEPS = (
    Inputs.TAILS,
    Inputs.VARIED,
    Inputs.HALVES,
    Inputs.MOVING,
    Inputs.SINGLE,
    Inputs.EVERY,
    Inputs.BRINK,
)
"""Kinds that are drawn in sweeps: a series of draws with a step number."""
MAX_SWEEP = 1 << 8
"""Exclusive upper limit of the number of draws in a sweep.

Their seeds are consecutive numbers from a multiple of this, so that sweeps do not overlap.
"""
MOST_VALUES = 1 << 22
"""Largest number of different values of an integer input that a sweep tries one by one."""


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
"""Kinds on which the terms of a sum are nearly equal, or follow far larger ones.

The rounding errors of a sequential sum then add up instead of cancelling.
"""
LENIENT = (Inputs.INFINITE, Inputs.NAN)
"""Kinds with NaN or infinities in the inputs, on which not all elements are judged.

An element is judged only if it is finite in the output and in the reference, in both precisions
(`rules.nonfinite`).
"""


def sweep_seed(seed: int, step: int) -> int:
    """Return the seed that all draws of a sweep have in common.

    `seed` and `step` are those of one of its draws.
    """
    return (seed - step) // MAX_SWEEP
