"""Find a dimension along which a large reference can be computed in slices.

The fp64 reference and its perturbations take several times the memory of the inputs. One slice at a
time is enough in two cases: the output for a slice of the inputs is that slice of the output, or
the outputs for all slices add up to the output. Tests on the reference itself decide this: in fp64
on few rows, with the other rows replaced by NaN and by large numbers, and in its own precision at
the full size, on every slice (`slice_checks.py`).

Not covered: integer outputs, whose indices are traced through the whole run, and references with
some outputs that are joined and others that are added. Such references are computed whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from cuagent.task import TaskError
from cuagent.verify.tensors import FAILURES, is_inexact

if TYPE_CHECKING:
    from torch import Tensor

    Run = Callable[[list[Tensor]], list[Tensor]]

SHARE = 1 / 128
"""Largest share of the device's memory for the inputs and outputs of one slice."""
FEWEST = 8
"""Least number of slices; fewer slices save little memory."""
ROWS = 3
"""Least length of the sliced dimension in the fp64 tests."""
EQUAL = 1e-9
"""Largest difference, relative to the largest value, up to which two fp64 outputs count as
equal.
"""
LARGE = 2.0**16
"""Factor by which rows outside the tested part are multiplied; their squares stay finite in
fp32.
"""


class Combine(StrEnum):
    """How the outputs for all slices form the output for the whole input."""

    JOIN = "join"
    """The outputs for the slices are concatenated."""
    MEAN = "mean"
    """The output is the mean over the slices, weighted by their lengths."""
    SUM = "sum"
    """The output is the sum over the slices."""


@dataclass(frozen=True)
class Slicing:
    """A division of inputs and outputs into slices along one dimension of each."""

    inputs: tuple[int | None, ...]
    """Sliced dimension of each input; None for an input that every slice needs as a whole."""
    outputs: tuple[int, ...]
    """Sliced dimension of each output; empty unless the outputs are concatenated."""
    combine: Combine
    extent: int
    """Length of the sliced dimension, the same in all tensors."""
    step: int
    """Length of a slice; the last one may be shorter."""

    @property
    def joins(self) -> bool:
        """True if the outputs for the slices are concatenated."""
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
        """Return views of the inputs, restricted to [begin, end) of the sliced dimension."""
        return [
            x if dim is None else x.narrow(dim, begin, end - begin)
            for x, dim in zip(tensors, self.inputs, strict=True)
        ]

    def of_outputs(self, tensors: Sequence[Tensor], begin: int, end: int) -> list[Tensor]:
        """Return views of the outputs, restricted to [begin, end) of the sliced dimension.

        If the slices' outputs are added, return the whole outputs.
        """
        if not self.joins:
            return list(tensors)
        return [
            y.narrow(dim, begin, end - begin) for y, dim in zip(tensors, self.outputs, strict=True)
        ]

    def share(self, begin: int, end: int) -> float:
        """Return the weight of slice [begin, end) in the sum: its share of the length for a mean,
        else 1.
        """
        return (end - begin) / self.extent if self.combine is Combine.MEAN else 1.0

    def run(self, run: Run, inputs: Sequence[Tensor], target: Sequence[Tensor]) -> None:
        """Call `run` on each slice of `inputs` and write the combined output to `target`.

        Raises TaskError if an output has another shape than expected.
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


def candidates(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], budget: int
) -> Iterator[Slicing]:
    """Yield the slicings that the shapes allow, those of the first dimensions first.

    `budget` is the device's memory in bytes.
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
    """Return `dim` if `tensor.shape[dim] == extent`, else None."""
    return dim if tensor.dim() > dim and tensor.shape[dim] == extent else None


def _other_dims(outputs: Sequence[Tensor], dim: int, extent: int) -> list[int]:
    """Return the dimensions other than `dim` in which every output has the length `extent`."""
    shapes = [tuple(y.shape) for y in outputs]
    return [
        at
        for at in range(min(map(len, shapes), default=0))
        if at != dim and all(shape[at] == extent for shape in shapes)
    ]


def separates(slicing: Slicing, run: Run, inputs: Sequence[Tensor], equal: float) -> bool:
    """Return True if the reference gives the same output on a few rows and on two parts of them.

    The rows of each part are also replaced by NaN and by large numbers. If outputs are
    concatenated, that must not change the output for the other part. `equal` is the largest
    difference relative to the largest value.
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
    """Return copies of `rows` in which `change` was applied to all rows outside [begin, end) =
    `part`.

    Only floating tensors that are sliced are changed.
    """
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
    """Return True if two outputs differ by at most `equal` times their largest value."""
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
