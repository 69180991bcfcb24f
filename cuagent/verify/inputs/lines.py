"""Draw tensors line by line; a line contains the elements among which an operator chooses one.

In the steps of a sweep the values of a line move, until each position was tested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.verify.inputs.random_values import first_of_rows, permutation

if TYPE_CHECKING:
    from torch import Generator, Tensor

LIKELY_MARKS = 4
"""Number of values at either end of an integer's range that are tried first as padding marks."""
ROW_STEPS = 4
"""Largest number of sweep steps in which each row repeats one integer."""
SHORTEST_AXIS = 8
"""Least length of an axis along which extremes are moved.

On a shorter axis random numbers have extremes at both ends by chance.
"""


@dataclass(frozen=True)
class LineView:
    """View of a tensor as lines: the tensor is reshaped to `shape`, and a line spans the axes
    `dims`.
    """

    shape: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def places(self) -> int:
        """Number of elements of a line."""
        return math.prod(self.shape[dim] for dim in self.dims)

    @property
    def steps(self) -> int:
        """Number of sweep steps after which a moving element was at every position, in one line or
        another.
        """
        lines = math.prod(self.shape) // max(1, self.places)
        return math.ceil(self.places / max(1, lines))

    def lines(self, tensor: Tensor) -> Tensor:
        """Return the tensor as [lines, elements of a line]."""
        last = tuple(range(-len(self.dims), 0))
        return tensor.reshape(self.shape).movedim(self.dims, last).reshape(-1, self.places)

    def back(self, lines: Tensor, like: Tensor) -> Tensor:
        """Convert [lines, elements of a line] back to the shape of `like`; the inverse of
        `lines`.
        """
        others = [side for dim, side in enumerate(self.shape) if dim not in self.dims]
        wide = lines.reshape([*others, *(self.shape[dim] for dim in self.dims)])
        last = tuple(range(-len(self.dims), 0))
        return wide.movedim(last, self.dims).reshape(like.shape)


def axes(tensor: Tensor) -> list[LineView]:
    """Return one LineView per long axis, the last axis first; only the last axis if none is
    long.
    """
    shape = tuple(tensor.shape) or (1,)
    long = [dim for dim, size in enumerate(shape) if size >= SHORTEST_AXIS]
    return [LineView(shape, (dim,)) for dim in reversed(long or [len(shape) - 1])]


def moving(
    normal: Tensor, extreme_size: float, line_view: LineView, step: int, order: Generator
) -> Tensor:
    """Return `normal` with a large positive and a large negative element at other positions of each
    line.

    With the same `order`, both are at every position after ceil(places / lines) steps. After twice
    as many steps the other elements of a line were once all below zero and once all above.
    """
    lines = line_view.lines(normal)
    at, opposite, sign = (column[:, None] for column in _places_of_step(lines, step, order))
    lines = sign * lines.abs()
    high = lines.gather(1, at).abs() + extreme_size
    lines = lines.scatter(1, opposite, -high).scatter(1, at, high)
    return line_view.back(lines, normal)


def single(tensor: Tensor, line_view: LineView, step: int, order: Generator) -> Tensor:
    """Return lines of booleans in which a single element is True, or a single element is False."""
    import torch

    lines = line_view.lines(tensor)
    at, _, sign = (column[:, None] for column in _places_of_step(lines, step, order))
    alone = torch.zeros_like(lines).scatter(1, at, torch.ones_like(lines[:, :1]))
    return line_view.back(alone ^ (sign > 0), tensor)


def sorted_lines(normal: Tensor, line_view: LineView, generator: Generator) -> Tensor:
    """Return each line of `normal` sorted, in ascending or (for half of the lines) descending
    order.
    """
    import torch

    lines = line_view.lines(normal).sort(-1).values
    falls = permutation(lines.shape[0], lines, generator)[:, None] % 2 == 0
    return line_view.back(torch.where(falls, lines.flip(-1), lines), normal)


def every(tensor: Tensor, bounds: tuple[int, int], step: int, order: Generator) -> Tensor:
    """Return the integers of one step; over all steps of a sweep each integer of the range occurs.

    Of negative integers only the least occurs, which may mark padding. In the last steps each row
    repeats one integer, because any integer may mark padding.
    """
    import torch

    low, high = bounds
    first = max(low, 0)
    values = torch.arange(first, max(high + 1, first), dtype=tensor.dtype, device=tensor.device)
    if low < 0:
        values = torch.cat([values, values.new_tensor([low])])
    plain, alike = steps_of_every(tensor, values.numel())
    row_sweep = alike > 0 and step >= plain
    like = first_of_rows(tensor) if row_sweep else tensor
    offset = (step - plain if row_sweep else step) * like.numel()
    number = torch.arange(like.numel(), device=tensor.device) + offset
    dealing = permutation(values.numel(), tensor, order)
    if row_sweep:  # values at either end most often mark padding, so they come first
        likely = (dealing < LIKELY_MARKS) | (dealing >= values.numel() - LIKELY_MARKS)
        dealing = torch.cat([dealing[likely], dealing[~likely]])
    chosen = dealing[number % values.numel()]
    return values[chosen].view(like.shape).expand(tensor.shape)


def steps_of_every(tensor: Tensor, values: int) -> tuple[int, int]:
    """Return the number of steps until each of `values` values has occurred, and that of further
    steps.

    In each further step every row repeats one value.
    """
    plain = math.ceil(values / max(1, tensor.numel()))
    if tensor.dim() < 2 or tensor.shape[-1] < 2:
        return plain, 0
    return plain, min(math.ceil(values * tensor.shape[-1] / max(1, tensor.numel())), ROW_STEPS)


def _places_of_step(lines: Tensor, step: int, order: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return (position of the largest, position of the least, sign of the others) in each line.

    Each item is int64 [lines]; `step` is the number of the draw in a sweep.
    """
    import torch

    count, places = lines.shape
    number = torch.arange(count, device=lines.device) + step * count
    order_of_places = permutation(places, lines, order)
    sign = 1 - 2 * ((number % places + number // places) % 2)
    return order_of_places[number % places], order_of_places[(number + places // 2) % places], sign
