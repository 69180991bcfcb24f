"""Trace one run of the reference: its selections, and the decisions that its operators make."""

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
    """Facts from one run of the reference."""

    outputs: list[Tensor]
    selections: list[Selection]
    traced: list[TracedIndices | None]
    """Traced indices for each output, None if it has none."""
    names: frozenset[str] = frozenset()
    """Names of all operators that ran."""
    decided: Sequence[Tensor] = ()
    """Copies of the operands of operators that round or produce integers or booleans."""
    thresholds: tuple[float, ...] = ()
    """Round numbers that floating tensors were compared with."""
    casts: bool = False
    """True if floating numbers were cast to integers."""
    defined: bool = True
    """True if all casts were within the integer range; casts of NaN or larger numbers depend on the
    machine."""
    edges: tuple[float, ...] = ()
    """Thresholds at which the result jumps."""
    scales: tuple[float, ...] = ()
    """Whole numbers and powers of two by which a tensor was scaled."""
    handles_nan: bool = False
    """True if the reference tests its inputs for NaN (`nan_tests`)."""
    handles_infinity: bool = False
    """True if it tests them for infinities too."""
    kinks: Sequence[Tensor] = ()
    """Operands that decide at a kink in a backward pass (`KINKS`)."""

    @property
    def rounds(self) -> bool:
        """True if a tensor was rounded to whole numbers."""
        return self.casts or bool(ROUNDED & {name.rstrip("_") for name in self.names})


def trace_reference(run: Callable[[], list[Tensor]]) -> ReferenceTrace:
    """Run the reference; record its selections, comparisons, roundings and scalings."""
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
