"""Trace one run of the reference: its selections (max, sort) and its decisions (comparisons,
roundings).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuagent.verify.trace.decisions import ROUNDED, Decisions
from cuagent.verify.trace.hooks import intercept_operators
from cuagent.verify.trace.nan_tests import NanTests
from cuagent.verify.trace.selections import (
    IndexTrace,
    Selection,
    TracedIndices,
    index_of,
    selection,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ReferenceTrace:
    """Record of one run of the reference: what its operators selected, compared, rounded and
    scaled.
    """

    outputs: list[Tensor]
    selections: list[Selection]
    traced: list[TracedIndices | None]
    """Selection that an output's indices come from, for each output; None if it has none."""
    names: frozenset[str] = frozenset()
    """Names of all operators that ran."""
    decided: Sequence[Tensor] = ()
    """Copies of the operands of operators that round or produce integers or booleans."""
    thresholds: tuple[float, ...] = ()
    """Numbers with which floating tensors were compared, if every precision represents them."""
    casts: bool = False
    """True if some floating tensor was cast to integers."""
    defined: bool = True
    """True if all casts to integers were in range; other casts depend on the machine."""
    edges: tuple[float, ...] = ()
    """Thresholds at which the result of an operator jumps."""
    scales: tuple[float, ...] = ()
    """Whole numbers and powers of two by which tensors were multiplied or divided."""
    handles_nan: bool = False
    """True if the reference tests its inputs for NaN (`nan_tests`)."""
    handles_infinity: bool = False
    """True if the reference tests its inputs for infinities too."""
    kinks: Sequence[Tensor] = ()
    """Copies of the operands that are compared at a kink in a backward pass (`decisions.KINKS`)."""

    @property
    def rounds(self) -> bool:
        """True if a floating tensor was rounded to whole numbers."""
        return self.casts or bool(ROUNDED & {name.rstrip("_") for name in self.names})


def trace_reference(run: Callable[[], list[Tensor]]) -> ReferenceTrace:
    """Call `run` and return what its operators selected, compared, rounded and scaled."""
    selections: list[Selection] = []
    names: set[str] = set()
    decisions, nan_tests, indices = Decisions(), NanTests(), IndexTrace()

    def record(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        names.add(_name(function, args))
        chosen = selection(function, args, kwargs)
        result = function(*args, **kwargs)
        nan_tests.see(function, args, result)
        decisions.see(function, args, kwargs, result)
        if chosen is None:
            indices.see(function, args, kwargs, result)
            return result
        if (index := index_of(chosen.name, result)) is not None:
            indices.add(len(selections), index)
        selections.append(chosen)
        return result

    with intercept_operators(record):
        outputs = run()
    return ReferenceTrace(
        outputs,
        selections,
        traced=[indices.of(output) for output in outputs],
        names=frozenset(names),
        decided=decisions.decided,
        thresholds=tuple(sorted(decisions.thresholds)),
        casts=bool(decisions.casts),
        defined=all(decisions.casts),
        edges=tuple(sorted(decisions.edges)),
        scales=tuple(sorted(decisions.scales)),
        handles_nan=nan_tests.nan,
        handles_infinity=nan_tests.infinity,
        kinks=decisions.kinks,
    )


def _name(function: Any, args: Sequence[Any]) -> str:
    name = str(function.overloadpacket.__name__)
    return f"complex {name}" if args and _is_complex(args[0]) else name


def _is_complex(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_complex()
