"""Run the reference with another tie-break in every operator that chooses among elements.

torch promises no order of equal elements, and a correct kernel has an order of its own, the same in
each line: for example the first one. If the answer is computed from the chosen elements (the number
of rows that an expert gets, their mean), independent random choices give quite another answer. So
the operators are made to prefer positions: from one of them upwards with wrap-around, or downwards.

Not covered: other orders of equal elements; stable sorts, which promise one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuagent.verify.trace.hooks import intercept_operators
from cuagent.verify.trace.magnitude_gaps import least_fill_sizes
from cuagent.verify.trace.selections import POOLS, Selection, index_of, selection

if TYPE_CHECKING:
    from torch import Tensor

COUNT_DEPENDENT = ("mode", "nanmedian")
"""Operators whose choice depends on how many elements are equal, or on which are NaN."""


@dataclass(frozen=True)
class TieOrder:
    """Order of positions that decides which of several equal elements counts as the largest."""

    start: float
    """Preferred position in a line, as a fraction of the line's length."""
    sign: int
    """Direction in which the preference falls from `start`, with wrap-around: 1 upwards, -1
    downwards.
    """


ORDERS = tuple(TieOrder(start / 8, sign) for start in range(8) for sign in (1, -1))
"""Tie orders to try: upwards and downwards from eight start positions."""


def ordered(order: TieOrder, slack: float = 0.0) -> AbstractContextManager[Any]:
    """Return a context in which operators choose by `order` among equal elements.

    Elements count as equal if they differ by less than `slack` times the largest element of their
    line. Mask fills are left out.
    """

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        chosen = selection(function, args, kwargs)
        if chosen is None or not chosen.indexed or chosen.stable or chosen.name in COUNT_DEPENDENT:
            return function(*args, **kwargs)
        result = function(_keys(chosen, order, slack), *args[1:], **kwargs)
        index = index_of(chosen.name, result)
        if index is None:
            return function(*args, **kwargs)
        return result if index is result else (_elements_at(chosen, index), index)

    return intercept_operators(call)


def _keys(chosen: Selection, order: TieOrder, slack: float) -> Tensor:
    """Return fp64 numbers that sort like the operand, except that equal elements follow `order`."""
    import torch

    operand, count = chosen.operand, chosen.places
    place = torch.arange(count, device=operand.device, dtype=torch.float64)
    rank = (place - round(order.start * count)).remainder(count) / count - 0.5
    sides = [side if dim in chosen.dims else 1 for dim, side in enumerate(operand.shape)]
    ramp = order.sign * rank.view(sides)
    if slack == 0:
        return operand.unique(return_inverse=True)[1] + 0.5 * ramp
    operand64 = operand.double()
    return operand64 + slack * _sizes(chosen, operand64) * ramp


def _sizes(chosen: Selection, operand64: Tensor) -> Tensor:
    """Return for each element the largest absolute value in its line, without mask fills."""
    import torch

    last = tuple(range(-len(chosen.dims), 0))
    moved = operand64.movedim(chosen.dims, last)
    lines = moved.reshape(-1, chosen.places).abs().nan_to_num(0.0, 0.0)
    not_fills = lines < least_fill_sizes(lines)[:, None]
    largest = torch.where(
        not_fills, lines.where(not_fills, 0).amax(-1, keepdim=True), lines.amax(-1, keepdim=True)
    )
    return largest.view(moved.shape).movedim(last, chosen.dims)


def _elements_at(chosen: Selection, index: Tensor) -> Tensor:
    """Return the operand's elements at `index`, in the form that the operator returns them."""
    operand = chosen.operand
    if chosen.name in POOLS:
        first = -len(chosen.dims)
        return operand.flatten(first).gather(-1, index.flatten(first)).view(index.shape)
    (dim,) = chosen.dims
    if index.dim() == operand.dim():
        return operand.gather(dim, index)
    return operand.gather(dim, index.unsqueeze(dim)).squeeze(dim)
