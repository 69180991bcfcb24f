"""Split a convolution into phases, each a dense loop over output points and kernel taps.

A plain convolution has one phase. A transposed one of stride s has s phases along each dimension:
the outputs `o` with equal `(o + padding) % s` use the same taps, every s-th of the kernel. No
multiplication by an inserted zero remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Axis:
    """One spatial dimension of a convolution."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int


@dataclass(frozen=True)
class Phase:
    """The points and taps of one phase along one dimension.

    Point `t` in [0, points) is output `output_step * t + output_start`. Tap `j` in [0, taps) is
    element `kernel_step * j + kernel_start` of the kernel, and reads input
    `input_step * t + tap_step * j + input_start`.
    """

    points: int
    taps: int
    output_step: int
    output_start: int
    input_step: int
    tap_step: int
    input_start: int
    kernel_step: int
    kernel_start: int


def phases(axes: tuple[Axis, ...], transposed: bool) -> Iterator[tuple[Phase, ...]]:
    """Yield the phases that have outputs, one `Phase` for each dimension.

    A phase without taps is yielded too: its outputs are the bias.
    """
    split = _transposed_phases if transposed else _only_phase
    yield from product(*(tuple(split(axis)) for axis in axes))


def _only_phase(axis: Axis) -> Iterator[Phase]:
    yield Phase(
        axis.outputs, axis.kernel, 1, 0, axis.stride, axis.dilation, -axis.padding, 1, 0
    )  # fmt: skip


def _transposed_phases(axis: Axis) -> Iterator[Phase]:
    """Solve o + padding = stride * i + k for each remainder of the left side.

    Requires a dilation of 1.
    """
    for remainder in range(axis.stride):
        first = (remainder - axis.padding) % axis.stride
        points = len(range(first, axis.outputs, axis.stride))
        if points == 0:
            continue
        taps = len(range(remainder, axis.kernel, axis.stride))
        # o = stride * t + first, and the quotient of o + padding by the stride is t + start.
        start = (first + axis.padding) // axis.stride
        yield Phase(points, taps, axis.stride, first, 1, -1, start, axis.stride, remainder)
