"""Run a reference on drawn inputs, and test if its outputs are fit to judge a candidate by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.verify.tensors import is_inexact

if TYPE_CHECKING:
    from torch import Tensor

HUGE_MARGIN = 2.0**40
"""Factor on huge inputs when a reference is tested on them.

A reference that squares its inputs overflows in this test and gets no huge inputs. So a correct
kernel that squares other intermediate numbers does not overflow either.
"""
TINY_SHARE = 1 / 16
"""An output counts as tiny if its rms is below this share of its rms on usual inputs."""
FAR = 1e-3
"""Error against fp64, relative to the largest value, above which an intermediate must have
overflowed.
"""

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
    """True if some outputs are integers or booleans."""
    fits: Fits
    """Return True if the outputs are finite and the intermediate results fit the admitted dtype."""
    fills_hidden: FillsHidden | None = None
    """Return True if masked elements do not affect the output; None for a reference without mask
    fills.
    """


def scaled(tensors: Sequence[Tensor], factor: float) -> list[Tensor]:
    return [x * factor if is_inexact(x) else x for x in tensors]


def keeps_size(results: Sequence[Tensor], larger: Sequence[Tensor]) -> bool:
    """Return True if some output does not become tiny when the inputs become tiny.

    `results` are the outputs on tiny inputs, `larger` those on the same inputs scaled to a usual
    size. Tiny outputs cannot judge a kernel: a correct `exp(x) - 1` in an ELU has an error as large
    as they are.
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
    """Return True if all outputs are near the fp64 ones: no intermediate result overflowed."""
    return all(
        bool(((r - y).abs().double() <= FAR * y.abs().double().max()).all())
        for r, y in zip(results, exact, strict=True)
        if r.numel() and is_inexact(r)
    )
