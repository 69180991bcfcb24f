"""Orders of equals: the reference run with another tie-break in every operator that chooses.

torch promises no order of equals, and an honest kernel has one of its own, the same in each line:
the first of them, say. Where the answer is made from what was chosen (how many rows an expert gets,
the mean over the chosen), independent choices at random come nowhere near that. So the operators
are made to prefer places: from one of them upwards and round, or downwards.

Not covered: an order of equals that is none of these; stable sorts, which promise one.
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

COUNTED = ("mode", "nanmedian")
"""Whose choice hangs on how many are equal, or on which are no numbers."""


@dataclass(frozen=True)
class TieOrder:
    """Which of equals is taken for the largest."""

    start: float
    """Where in a line the order begins, as a fraction of it."""
    sign: int
    """1 where places further on, -1 where places before come next."""


ORDERS = tuple(TieOrder(start / 8, sign) for start in range(8) for sign in (1, -1))
"""The last and the first of equals, and the same beginning elsewhere."""


def ordered(order: TieOrder, slack: float = 0.0) -> AbstractContextManager[Any]:
    """Where it is entered, operators choose by `order` among elements that are equal.

    What lies nearer together than `slack` times the largest of its line, marks apart, is taken for
    equal too.
    """

    def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        chosen = selection(function, args, kwargs)
        if chosen is None or not chosen.indexed or chosen.stable or chosen.name in COUNTED:
            return function(*args, **kwargs)
        result = function(_keys(chosen, order, slack), *args[1:], **kwargs)
        index = index_of(chosen.name, result)
        if index is None:
            return function(*args, **kwargs)
        return result if index is result else (_named(chosen, index), index)

    return intercept_operators(call)


def _keys(chosen: Selection, order: TieOrder, slack: float) -> Tensor:
    """fp64 like the operand, no two equal in a line."""
    import torch

    operand, count = chosen.operand, chosen.places
    place = torch.arange(count, device=operand.device, dtype=torch.float64)
    rank = (place - round(order.start * count)).remainder(count) / count - 0.5
    sides = [side if dim in chosen.dims else 1 for dim, side in enumerate(operand.shape)]
    ramp = order.sign * rank.view(sides)
    if slack == 0:
        return operand.unique(return_inverse=True)[1] + 0.5 * ramp
    wide = operand.double()
    return wide + slack * _sizes(chosen, wide) * ramp


def _sizes(chosen: Selection, wide: Tensor) -> Tensor:
    """How large the largest is that an element is compared with: a line, but for its marks."""
    import torch

    last = tuple(range(-len(chosen.dims), 0))
    seen = wide.movedim(chosen.dims, last)
    lines = seen.reshape(-1, chosen.places).abs().nan_to_num(0.0, 0.0)
    usual = lines < least_fill_sizes(lines)[:, None]
    most = torch.where(
        usual, lines.where(usual, 0).amax(-1, keepdim=True), lines.amax(-1, keepdim=True)
    )
    return most.view(seen.shape).movedim(last, chosen.dims)


def _named(chosen: Selection, index: Tensor) -> Tensor:
    """The elements that the indices name."""
    operand = chosen.operand
    if chosen.name in POOLS:
        first = -len(chosen.dims)
        return operand.flatten(first).gather(-1, index.flatten(first)).view(index.shape)
    (dim,) = chosen.dims
    if index.dim() == operand.dim():
        return operand.gather(dim, index)
    return operand.gather(dim, index.unsqueeze(dim)).squeeze(dim)
