"""Find operators of the reference that choose among elements, and follow their indices to outputs.

A line contains the elements among which an operator chooses one. A maximum, a sort or a pooling
shows only the chosen element of each line. To test the other elements, extremes must be drawn at
their positions, so the lines must be known. An index may name any of several equal elements, so the
rule for indices must know the elements from which each index was chosen.

Covered: indices that reach the output unchanged, through any views, slices and integer dtypes. Not
covered: results computed from an index (a sum with it, a one-hot row).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuagent.verify.tensors import is_inexact

if TYPE_CHECKING:
    from torch import Tensor

_BY_DIM = """
max min amax amin aminmax argmax argmin any all topk sort kthvalue median nanmedian mode cummax
cummin
"""
BY_DIM = frozenset(_BY_DIM.split())
"""Choosing operators with an argument `dim`; without it they choose among all elements."""
POOLS = {
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
}
"""Pooling operators, with the number of trailing axes that their windows span."""
WITHOUT_INDEX = frozenset(("any", "all", "amax", "amin", "aminmax", "linalg_vector_norm"))
"""Choosing operators that return the chosen value but not its index."""
SHIFTED = frozenset(("_softmax", "_log_softmax", "logsumexp"))
"""Operators that subtract the maximum of a line first, so that no exponential overflows."""
FIRST = frozenset(("argmax", "argmin", "max", "min"))
"""Operators whose documentation guarantees the index of the first of equal elements."""
DISTINCT = ("topk", "sort")
"""Operators that return distinct indices within one line."""
BOUNDED = (*POOLS, "cummax", "cummin")
"""Operators (pools, cummax, cummin) that choose each result element from a part of a line."""
COPIES = ("clone", "_to_copy", "_unsafe_view", "flip")
"""Operators, besides views, that copy elements unchanged."""


@dataclass(frozen=True)
class Selection:
    """One call of an operator that chooses among elements of `operand`."""

    name: str
    operand: Tensor
    dims: tuple[int, ...]
    """Axes along which the operator chose; the elements along all of them form a line."""
    function: Any
    other_args: tuple[Any, ...]
    """Positional arguments of the operator after the operand."""
    kwargs: dict[str, Any]

    @property
    def places(self) -> int:
        """Number of elements of a line."""
        return math.prod(self.operand.shape[dim] for dim in self.dims)

    @property
    def lines(self) -> int:
        """Number of lines, in each of which the operator chose."""
        return self.operand.numel() // max(1, self.places)

    @property
    def indexed(self) -> bool:
        """True if the operator returns the index of the chosen element."""
        return self.name not in WITHOUT_INDEX and self.name not in SHIFTED

    @property
    def first_wins(self) -> bool:
        """True if the operator guarantees the index of the first of equal elements."""
        return self.name in FIRST

    @property
    def stable(self) -> bool:
        """True if the operator guarantees that equal elements keep their order (a stable sort)."""
        return self.name == "sort" and "stable" in (self.function._overloadname or "")


@dataclass(frozen=True)
class TracedIndices:
    """Origin of a tensor whose elements are indices that one selection returned."""

    selection: int
    """Number of the selection in the order of execution."""
    positions: Tensor
    """Position of each output element in the flattened indices of the selection."""
    shape: tuple[int, ...]
    """Shape of the indices that the selection returned."""


def selection(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Selection | None:
    """Return the `Selection` for an operator's call; None if the operator chooses nothing."""
    import torch

    name = function.overloadpacket.__name__
    if not args or not isinstance(args[0], torch.Tensor) or not args[0].dim():
        return None
    operand, count = args[0], args[0].dim()
    if name in POOLS:
        dims: Sequence[int] = range(count - POOLS[name], count)
    elif name in BY_DIM or name in SHIFTED or name == "linalg_vector_norm":
        dims = _dims(function, args, kwargs) or range(count)
    else:
        return None
    second = args[1] if len(args) > 1 else None
    elementwise = isinstance(second, torch.Tensor)
    if elementwise or (name == "linalg_vector_norm" and not math.isinf(second or 2)):
        return None
    around = tuple(sorted({dim % count for dim in dims}))
    before = operand.detach().clone() if function._schema.is_mutable else operand
    return Selection(name, before, around, function, tuple(args[1:]), kwargs)


def _dims(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[int]:
    """Return the axes that an operator's argument `dim` names; [] if it chooses among all
    elements.
    """
    for position, argument in enumerate(function._schema.arguments):
        if argument.name == "dim":
            given = args[position] if position < len(args) else argument.default_value
            given = kwargs.get("dim", given)
            return [given] if isinstance(given, int) else list(given or [])
    return []


def index_of(name: str, result: Any) -> Tensor | None:
    """Return the indices in the result of the operator `name`; None if it returns none."""
    if isinstance(result, tuple | list):
        return None if name == "aminmax" else result[1]
    return result if name in ("argmax", "argmin") else None


class IndexTrace:
    """Follows the indices of selections through views and copies, while the reference runs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, TracedIndices]] = {}
        """(tensor, origin) of each tensor of indices, by the tensor's id.

        The tensor is referenced so that its id is not reused.
        """

    def add(self, number: int, index: Tensor) -> None:
        """Register the tensor of indices that selection number `number` returned."""
        import torch

        numbers = torch.arange(index.numel(), device=index.device).view(index.shape)
        self._known[id(index)] = index, TracedIndices(number, numbers, tuple(index.shape))

    def of(self, output: Tensor) -> TracedIndices | None:
        """Return the origin of the indices in a tensor; None if it contains no traced indices."""
        if id(output) not in self._known or is_inexact(output):
            return None
        return self._known[id(output)][1]

    def see(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Update the origins with one operator that ran; its first argument may be a tensor of
        indices.
        """
        if not args or id(args[0]) not in self._known:
            return
        if function._schema.is_mutable:
            del self._known[id(args[0])]
            return
        name = function.overloadpacket.__name__
        if not (function.is_view or name in COPIES):
            return
        traced = self._known[id(args[0])][1]
        if name == "_to_copy":
            self._known[id(result)] = result, traced
            return
        numbers = function(traced.positions, *args[1:], **kwargs)
        if isinstance(result, tuple | list):
            for part, of_part in zip(result, numbers, strict=True):
                self._known[id(part)] = part, replace(traced, positions=of_part)
        else:
            self._known[id(result)] = result, replace(traced, positions=numbers)
