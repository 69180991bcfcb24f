"""Run a reference on drawn inputs, and judge if its results are fit to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.verify.tensors import is_inexact

if TYPE_CHECKING:
    from torch import Tensor

HUGE_MARGIN = 2.0**40
"""Factor that enlarges huge numbers further when a reference is tested on them. A reference that
squares numbers fails that test and gets no huge ones, because a correct kernel may square other
numbers."""
TINY_SHARE = 1 / 16
"""Share of an output's rms on usual inputs. If its rms on tiny inputs is below that, the output
counts as tiny."""
FAR = 1e-3
"""Error against fp64, relative to the largest value, above which an intermediate result must have
overflowed."""

Forward = Callable[[list["Tensor"]], "list[Tensor]"]
FillsHidden = Callable[[list["Tensor"]], bool]
Fits = Callable[[list["Tensor"], list["Tensor"]], bool]


@dataclass(frozen=True)
class ReferenceRuns:
    """Functions that run a reference and check its results."""

    forward: Forward
    """Run the reference in its own precision."""
    forward_fp64: Forward
    """Run the reference in fp64."""
    discrete: bool
    """True if the outputs contain integers or booleans."""
    fits: Fits
    """Return True if results are finite and intermediates fit the admitted dtype."""
    fills_hidden: FillsHidden | None = None
    """Return True if mask fills stay hidden; None without mask fills (`trace.mask_fills`)."""


def scaled(tensors: Sequence[Tensor], factor: float) -> list[Tensor]:
    return [x * factor if x.is_floating_point() else x for x in tensors]


def keeps_size(results: Sequence[Tensor], larger: Sequence[Tensor]) -> bool:
    """Return True if some output keeps its size when the inputs become tiny.

    `results` belong to tiny inputs, `larger` to the same inputs scaled to a usual size. If all
    outputs become tiny, a correct `exp(x) - 1` in an ELU has an error as large as they are.
    """
    return any(
        rms(small) > TINY_SHARE * rms(large)
        for small, large in zip(results, larger, strict=True)
        if is_inexact(small)
    )


def rms(tensor: Tensor) -> float:
    numbers = tensor[tensor.isfinite()].abs().double()
    return float(numbers.square().mean().sqrt()) if numbers.numel() else 0.0


def agrees_with_fp64(results: Sequence[Tensor], exact: Sequence[Tensor]) -> bool:
    """Return True if all outputs are near those in fp64: no intermediate result overflowed."""
    return all(
        bool(((r - y).abs().double() <= FAR * y.abs().double().max()).all())
        for r, y in zip(results, exact, strict=True)
        if r.numel() and is_inexact(r)
    )
