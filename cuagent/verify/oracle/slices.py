"""Find a dimension along which a large reference can be computed in slices.

The fp64 reference and its perturbations take several times the memory of the inputs. If the answer
to a slice of the inputs is that slice of the answer, or if the answers to all slices add up to it,
one slice at a time is enough. Tests on the reference itself decide this: in fp64 on few rows, with
the other rows replaced by NaN and by large numbers, and in its own precision at the full size, on
every slice. Each draw repeats the last test where the whole run differs most (`is_consistent`).

Not covered: integer outputs, whose indices are traced through the whole run, and outputs of which
some join and others add up. Such references are computed whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from cuagent.task import TaskError
from cuagent.verify.oracle.sensitivity import run_or_none
from cuagent.verify.tensors import FAILURES, UNIT, in_blocks, is_inexact, wide_dtype

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from cuagent.verify.oracle.two_precisions import TwoPrecisions

    Run = Callable[[list[Tensor]], list[Tensor]]

SHARE = 1 / 128
"""Largest share of the device's memory for the inputs and outputs of one slice."""
FEWEST = 8
"""Least number of slices; with fewer, a slice needs nearly as much memory as the whole."""
ROWS = 3
"""Least number of indices of the tests in fp64."""
EQUAL = 1e-9
"""Largest difference of equal answers in fp64, relative to the largest value."""
LARGE = 2.0**16
"""Factor on the other rows. It leaves squares finite in fp32."""
OWN_TIMES, ROUNDOFFS = 10.0, 8.0
"""Largest error of a whole run, as a multiple of the error of the run on the slice, and of the
honest roundoff. A slice may be computed in another order of summation."""


class Combine(StrEnum):
    """Relation of the answers to the slices and the whole answer."""

    JOIN = "join"
    """Each partial result is a slice of the answer."""
    MEAN = "mean"
    """Their mean, weighted by the lengths of the slices, is the answer."""
    SUM = "sum"
    """Their sum is the answer."""


@dataclass(frozen=True)
class Slicing:
    """Slices of the inputs and outputs along dimensions of one length."""

    inputs: tuple[int | None, ...]
    """Dimension of each input; None for an input that every slice needs as a whole."""
    outputs: tuple[int, ...]
    """Dimension of each output; empty unless slices of the answer are joined."""
    combine: Combine
    extent: int
    """Length of the dimension."""
    step: int
    """Length of a slice; the last one may be shorter."""

    @property
    def joins(self) -> bool:
        """True if each slice gives a slice of the answer."""
        return self.combine is Combine.JOIN

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield [begin, end) of each slice."""
        for begin in range(0, self.extent, self.step):
            yield begin, min(begin + self.step, self.extent)

    def even_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ranges that all have the length `step`; the last one may overlap the one before."""
        for begin in range(0, self.extent, self.step):
            yield (at := min(begin, self.extent - self.step)), at + self.step

    def of_inputs(self, tensors: Sequence[Tensor], begin: int, end: int) -> list[Tensor]:
        """Return views of a range of the inputs."""
        return [
            x if dim is None else x.narrow(dim, begin, end - begin)
            for x, dim in zip(tensors, self.inputs, strict=True)
        ]

    def of_outputs(self, tensors: Sequence[Tensor], begin: int, end: int) -> list[Tensor]:
        """Return views of a range of the outputs; the outputs themselves if slices add up."""
        if not self.joins:
            return list(tensors)
        return [
            y.narrow(dim, begin, end - begin) for y, dim in zip(tensors, self.outputs, strict=True)
        ]

    def share(self, begin: int, end: int) -> float:
        """Return the factor of the answer to one slice in the whole answer."""
        return (end - begin) / self.extent if self.combine is Combine.MEAN else 1.0

    def run(self, run: Run, inputs: Sequence[Tensor], target: Sequence[Tensor]) -> None:
        """Write to `target` the answer that `run` gives in slices.

        Raises TaskError if an answer has another shape than usual.
        """
        for view in target if not self.joins else ():
            view.zero_()
        for begin, end in self.ranges():
            results = run(self.of_inputs(inputs, begin, end))
            views = self.of_outputs(target, begin, end)
            if [x.shape for x in results] != [x.shape for x in views]:
                raise TaskError("the reference's output changes its shape from call to call")
            for view, result in zip(views, results, strict=True):
                if self.joins:
                    view.copy_(result)
                else:
                    view.add_(result.to(view.device), alpha=self.share(begin, end))
            del results


def find_slicing(
    reference: TwoPrecisions, inputs: list[Tensor], results: list[Tensor], budget: int
) -> bool:
    """Find slices of a large reference, let it use them, and determine its properties on one.

    `results` are its outputs on `inputs` in its own precision, `budget` the bytes of the device's
    memory. Returns False if the reference has no slices.
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
    """Return True if the run on all inputs agrees with the runs on slices of them."""
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


def candidates(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], budget: int
) -> Iterator[Slicing]:
    """Yield the slicings that the shapes allow, slices of the first dimensions first.

    `budget` are the bytes of the device's memory.
    """
    largest = max(inputs, key=lambda tensor: tensor.nbytes, default=None)
    if largest is None or not all(map(is_inexact, outputs)):
        return
    size = sum(tensor.nbytes for tensor in (*inputs, *outputs))
    for dim, extent in enumerate(largest.shape):
        if extent < FEWEST:
            continue
        sliced = tuple(_dim_of(tensor, dim, extent) for tensor in inputs)
        step = max(1, min(extent // FEWEST, int(extent * SHARE * budget / max(1, size))))
        found = {_dim_of(y, dim, extent) for y in outputs}
        if None not in found:
            joined = tuple(_dim_of(y, dim, extent) or 0 for y in outputs)
            yield Slicing(sliced, joined, Combine.JOIN, extent, step)
        for at in _other_dims(outputs, dim, extent):
            yield Slicing(sliced, (at,) * len(outputs), Combine.JOIN, extent, step)
        if found == {None}:
            yield Slicing(sliced, (), Combine.MEAN, extent, step)
            yield Slicing(sliced, (), Combine.SUM, extent, step)


def _dim_of(tensor: Tensor, dim: int, extent: int) -> int | None:
    """Return `dim` if the tensor has this extent there, else None."""
    return dim if tensor.dim() > dim and tensor.shape[dim] == extent else None


def _other_dims(outputs: Sequence[Tensor], dim: int, extent: int) -> list[int]:
    """Return further dimensions at which every output has this extent."""
    shapes = [tuple(y.shape) for y in outputs]
    return [
        at
        for at in range(min(map(len, shapes), default=0))
        if at != dim and all(shape[at] == extent for shape in shapes)
    ]


def separates(slicing: Slicing, run: Run, inputs: Sequence[Tensor], equal: float) -> bool:
    """Return True if few rows of the inputs give the same answer together and in two parts.

    The rows of each part are also replaced by NaN and by large numbers, which must not change the
    answer to the other part where slices are joined. `equal` is the largest difference relative to
    the largest value.
    """
    length = min(slicing.extent, max(ROWS, slicing.step))
    cut = max(1, length // ROWS)
    rows = [x.clone() for x in slicing.of_inputs(inputs, 0, length)]
    few = Slicing(slicing.inputs, slicing.outputs, slicing.combine, length, length)
    parts = ((0, cut), (cut, length))
    try:
        whole = run(rows)
        if slicing.joins and any(
            y.dim() <= dim or y.shape[dim] != length
            for y, dim in zip(whole, slicing.outputs, strict=True)
        ):
            return False
        answers = [run(few.of_inputs(rows, *part)) for part in parts]
        if not slicing.joins:
            total = [a * few.share(*parts[0]) + b * few.share(*parts[1]) for a, b in _both(answers)]
            return _same(total, whole, equal)
        for part, answer in zip(parts, answers, strict=True):
            if not _same(answer, few.of_outputs(whole, *part), equal):
                return False
            for change in (_missing, _enlarged):
                others = run(_outside(few, rows, part, change))
                if not _same(few.of_outputs(others, *part), answer, equal):
                    return False
    except (*FAILURES, TaskError):
        return False
    return True


def _both(answers: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    first, second = answers
    yield from zip(first, second, strict=True)


def _missing(rows: Tensor) -> None:
    rows.fill_(math.nan)


def _enlarged(rows: Tensor) -> None:
    rows.mul_(LARGE)


def _outside(
    few: Slicing, rows: Sequence[Tensor], part: tuple[int, int], change: Callable[[Tensor], None]
) -> list[Tensor]:
    """Return the rows with all sliced floating tensors changed outside of `part`."""
    changed = []
    for tensor, dim in zip(rows, few.inputs, strict=True):
        if dim is None or not is_inexact(tensor):
            changed.append(tensor)
            continue
        copy = tensor.clone()
        for begin, end in ((0, part[0]), (part[1], few.extent)):
            if end > begin:
                change(copy.narrow(dim, begin, end - begin))
        changed.append(copy)
    return changed


def _same(these: Sequence[Tensor], those: Sequence[Tensor], equal: float) -> bool:
    """Return True if answers are equal up to `equal` of their largest value."""
    import torch

    if len(these) != len(those) or any(
        x.shape != y.shape for x, y in zip(these, those, strict=True)
    ):
        return False
    for x, y in zip(these, those, strict=True):
        finite = y.abs().nan_to_num(0.0, 0.0, 0.0)
        limit = equal * float(finite.max()) if finite.numel() else 0.0
        if not torch.allclose(x, y, rtol=0.0, atol=limit, equal_nan=True):
            return False
    return True


def is_consistent(
    reference: TwoPrecisions,
    inputs: list[Tensor],
    declared: Sequence[Tensor],
    precise: Sequence[Tensor],
    generator: Generator,
) -> bool:
    """Return True if the slices hold for this draw: its whole run agrees with the runs on slices.

    `declared` is the whole run and `precise` the answer in slices. Where they differ by more than
    roundoff, the reference runs again in its own precision: on the slice that differs most and on
    a random one, or on all of them if the answers add up.
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
    """Return the largest error of a whole run on one slice, in units of the admitted roundoff."""
    found = [0.0]
    for r, y in zip(whole, exact, strict=True):
        _, of_whole, size = _errors(y, r, y)
        limit = ROUNDOFFS * max(roundoff, UNIT) * size
        found.append(of_whole / limit if limit else (math.inf if of_whole else 0.0))
    return max(found)


def errors_agree(
    sliced: Sequence[Tensor], whole: Sequence[Tensor], exact: Sequence[Tensor], roundoff: float
) -> bool:
    """Return True if two runs in the reference's own precision have errors of one size.

    `roundoff` is the relative error of honest arithmetic.
    """
    each = zip(sliced, whole, exact, strict=True)
    return all(_near(x, r, y, roundoff) for x, r, y in each if r.numel())


def _near(sliced: Tensor, whole: Tensor, exact: Tensor, roundoff: float) -> bool:
    """Return True if the errors of both runs are of one size."""
    of_slice, of_whole, size = _errors(sliced, whole, exact)
    return of_whole <= OWN_TIMES * of_slice + ROUNDOFFS * max(roundoff, UNIT) * size


def _errors(sliced: Tensor, whole: Tensor, exact: Tensor) -> tuple[float, float, float]:
    """Return the norms of both errors and of the exact answer, over the finite elements."""
    sums = [0.0, 0.0, 0.0]
    for x, r, y in in_blocks(sliced, whole, exact):
        numbers = [part.double() for part in (x, r, y)]
        finite = numbers[0].isfinite() & numbers[1].isfinite() & numbers[2].isfinite()
        x64, r64, y64 = (part.where(finite, 0) for part in numbers)
        for index, part in enumerate((x64 - y64, r64 - y64, y64)):
            sums[index] += float(part.square().sum())
    of_slice, of_whole, size = map(math.sqrt, sums)
    return of_slice, of_whole, size
