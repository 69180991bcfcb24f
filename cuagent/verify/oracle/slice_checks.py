"""Test if a large reference can run in slices, and repeat the test in each draw.

The runs on slices must agree with the run on the whole input. In each draw this is tested on the
slices that differ most from that run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from cuagent.task import TaskError
from cuagent.verify.oracle.sensitivity import run_or_none
from cuagent.verify.oracle.slices import EQUAL, ROWS, Slicing, candidates, separates
from cuagent.verify.oracle.two_precisions import TwoPrecisions
from cuagent.verify.tensors import FAILURES, UNIT, in_blocks, square_sum, to_fp64, wide_dtype

if TYPE_CHECKING:
    from torch import Generator, Tensor

OWN_TIMES, ROUNDOFFS = 10.0, 8.0
"""Largest error of a whole run: OWN_TIMES times the error of the run on the slice, plus ROUNDOFFS
times roundoff.

A slice may be summed in another order than the whole.
"""


def find_slicing(
    reference: TwoPrecisions, inputs: list[Tensor], results: list[Tensor], budget: int
) -> bool:
    """Find a slicing of a large reference and set it on `reference`; return False if there is none.

    `results` are the outputs on `inputs` in the reference's own precision, `budget` the bytes of
    the device's memory. The properties that `reference.inspect` finds are determined on one slice.
    """
    for found in candidates(inputs, results, budget):
        sample = found.of_inputs(inputs, 0, min(found.extent, max(ROWS, found.step)))
        outputs = run_or_none(partial(reference.forward, sample), nullcontext())
        if outputs is None or len(outputs) != len(results):
            continue
        reference.inspect(sample, outputs)
        equal = EQUAL if reference.fp64 else reference.roundoff
        if separates(found, reference.plain_fp64, inputs, equal) and _holds_at_full_size(
            reference, found, inputs, results
        ):
            reference.use_slices(found, results)
            return True
    return False


def _holds_at_full_size(
    reference: TwoPrecisions, found: Slicing, inputs: list[Tensor], results: list[Tensor]
) -> bool:
    """Return True if the run on all inputs agrees with the runs on all slices."""
    if not found.joins:
        exact = [y.new_zeros(y.shape, dtype=wide_dtype(y)) for y in results]
        summed = [y.new_zeros(y.shape) for y in exact]
        try:
            found.run(reference.plain_fp64, inputs, exact)
            found.run(reference.forward, inputs, summed)
        except (*FAILURES, TaskError):
            return False
        return errors_agree(summed, results, exact, reference.roundoff)
    # Check every slice, because a reference may treat a few rows differently, anywhere.
    for part in found.even_ranges():
        given, of_part = found.of_inputs(inputs, *part), found.of_outputs(results, *part)
        runs = [
            run_or_none(partial(run, given), nullcontext())
            for run in (reference.forward, reference.plain_fp64)
        ]
        if any(x is None or [y.shape for y in x] != [y.shape for y in of_part] for x in runs):
            return False
        sliced, exact = (x or [] for x in runs)
        if not errors_agree(sliced, of_part, exact, reference.roundoff):
            return False
    return True


def is_consistent(
    reference: TwoPrecisions,
    inputs: list[Tensor],
    declared: Sequence[Tensor],
    precise: Sequence[Tensor],
    generator: Generator,
) -> bool:
    """Return True if the run on this draw's whole inputs agrees with the runs on slices.

    `declared` is the output of the whole run, `precise` the fp64 output in slices. If they differ
    by more than roundoff, the reference runs again in its own precision: on the slice that differs
    most and on a random one, or on all slices if their outputs are added.
    """
    import torch

    slicing, roundoff = reference.slicing, reference.roundoff
    if slicing is None:
        return True
    if not slicing.joins:
        if errors_agree(precise, declared, precise, roundoff):
            return True
        summed = [y.new_zeros(y.shape) for y in precise]
        try:
            slicing.run(reference.forward, inputs, summed)
        except (*FAILURES, TaskError):
            return False
        return errors_agree(summed, declared, precise, roundoff)
    ranges = list(slicing.even_ranges())
    excess = [
        _excess(slicing.of_outputs(declared, *part), slicing.of_outputs(precise, *part), roundoff)
        for part in ranges
    ]
    suspects = [n for n, times in enumerate(excess) if times > 1]
    if not suspects:
        return True
    device = reference.task.device.value
    chosen = int(torch.randint(len(suspects), (1,), generator=generator, device=device))
    for number in {max(suspects, key=excess.__getitem__), suspects[chosen]}:
        part = ranges[number]
        given = slicing.of_inputs(inputs, *part)
        found = run_or_none(partial(reference.forward, given), nullcontext())
        if found is None or not errors_agree(
            found,
            slicing.of_outputs(declared, *part),
            slicing.of_outputs(precise, *part),
            roundoff,
        ):
            return False
    return True


def _excess(whole: Sequence[Tensor], exact: Sequence[Tensor], roundoff: float) -> float:
    """Return the largest error of a whole run on one slice, as a multiple of the admitted
    roundoff.
    """
    found = [0.0]
    for r, y in zip(whole, exact, strict=True):
        _, of_whole, size = _errors(y, r, y)
        limit = ROUNDOFFS * max(roundoff, UNIT) * size
        found.append(of_whole / limit if limit else (math.inf if of_whole else 0.0))
    return max(found)


def errors_agree(
    sliced: Sequence[Tensor], whole: Sequence[Tensor], exact: Sequence[Tensor], roundoff: float
) -> bool:
    """Return True if the errors of a run in slices and of a whole run against fp64 are of similar
    size.

    `sliced` and `whole` are their outputs in the reference's own precision, `exact` the fp64
    output. `roundoff` is the relative error of honest arithmetic.
    """
    each = zip(sliced, whole, exact, strict=True)
    return all(_near(x, r, y, roundoff) for x, r, y in each if r.numel())


def _near(sliced: Tensor, whole: Tensor, exact: Tensor, roundoff: float) -> bool:
    """Return True if the whole run's error is at most OWN_TIMES the error in slices, plus
    roundoff.
    """
    of_slice, of_whole, size = _errors(sliced, whole, exact)
    return of_whole <= OWN_TIMES * of_slice + ROUNDOFFS * max(roundoff, UNIT) * size


def _plain_errors(sliced: Tensor, whole: Tensor, exact: Tensor) -> list[float]:
    """Return the sums of squares of (sliced - exact), (whole - exact) and exact, over all elements.

    They are finite only if all elements are. Masks and copies in fp64 take ten times as long.
    """
    import torch

    found = []
    for x, r, y in in_blocks(sliced, whole, exact):
        wide = to_fp64(y)
        parts = (x - wide, r - wide, wide) if sliced is not exact else (r - wide, wide)
        found.append(torch.stack([square_sum(part) for part in parts]))
    if not found:
        return [0.0, 0.0, 0.0]
    sums = torch.stack(found).sum(0).tolist()
    return sums if sliced is not exact else [0.0, *sums]


def _errors(sliced: Tensor, whole: Tensor, exact: Tensor) -> tuple[float, float, float]:
    """Return the norms of (sliced - exact), (whole - exact) and exact, over the finite elements."""
    if all(map(math.isfinite, plain := _plain_errors(sliced, whole, exact))):
        of_slice, of_whole, size = map(math.sqrt, plain)
        return of_slice, of_whole, size
    sums = [0.0, 0.0, 0.0]
    for x, r, y in in_blocks(sliced, whole, exact):
        numbers = [part.double() for part in (x, r, y)]
        finite = numbers[0].isfinite() & numbers[1].isfinite() & numbers[2].isfinite()
        x64, r64, y64 = (part.where(finite, 0) for part in numbers)
        for index, part in enumerate((x64 - y64, r64 - y64, y64)):
            sums[index] += float(part.square().sum())
    of_slice, of_whole, size = map(math.sqrt, sums)
    return of_slice, of_whole, size
