"""Find properties of a reference, from the trace of one run, that decide which inputs suit it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cuagent.verify.inputs.derive import boolean
from cuagent.verify.inputs.lines import LineView
from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.reference_trace import ReferenceTrace
from cuagent.verify.trace.selections import POOLS, SHIFTED, Selection

if TYPE_CHECKING:
    from torch import Tensor

SQUARING = ("var", "std", "norm", "dist", "hypot", "complex abs")
"""Parts of the names of operators whose formula squares its input."""


def computes_with_indices(trace: ReferenceTrace) -> bool:
    """Return True if some integer output is computed from indices that an argmax, sort or topk
    chose.
    """
    outputs = zip(trace.outputs, trace.traced, strict=True)
    return any(chosen.indexed for chosen in trace.selections) and any(
        not is_inexact(output) and not boolean(output) and traced is None
        for output, traced in outputs
    )


def shifts_along_axes(selections: Iterable[Selection]) -> bool:
    """Return True if the reference subtracts maxima along different axes of tensors of one shape.

    A Sinkhorn normalisation does, for example. An honest kernel may store the sums of rows and
    columns instead of the matrix. Among numbers of 1e6 such sums lose the logarithms of counts.
    """
    found: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for chosen in selections:
        if chosen.name in SHIFTED:
            found.setdefault(tuple(chosen.operand.shape), set()).add(tuple(chosen.dims))
    return any(len(dims) > 1 for dims in found.values())


def squares(names: Iterable[str]) -> bool:
    """Return True if an operator among `names` squares its input, perhaps in fp64."""
    return any(word in name for name in names for word in SQUARING)


def line_views_of(tensor: Tensor, selections: Sequence[Selection]) -> tuple[LineView, ...]:
    """Return the axes of this input along which the reference chooses elements; empty if unknown.

    An operand with as many elements as the input is assumed to be computed from it elementwise.
    """
    found: dict[LineView, None] = {}
    for chosen in selections:
        if chosen.operand.numel() == tensor.numel() and chosen.places > 1:
            dims = chosen.dims[-1:] if chosen.name in POOLS else chosen.dims
            found[LineView(tuple(chosen.operand.shape), dims)] = None
    # An extreme of a long line is also one of the shorter line inside it: keep the shorter.
    return tuple(
        line_view
        for line_view in found
        if not any(
            other.shape == line_view.shape and set(other.dims) < set(line_view.dims)
            for other in found
        )
    )
