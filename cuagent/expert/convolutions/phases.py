"""Split a convolution into phases, each a dense loop over output points and kernel taps.

A plain convolution has one phase. A transposed convolution of stride s has s phases along each
dimension: the outputs `o` with equal `(o + padding) % s` use the same taps, every s-th one of the
kernel. So no multiplication by an inserted zero remains.

If stores take longer than products, one phase has all outputs along the last dimension instead
(`Axis.together`): it multiplies zeros, but adjacent outputs are stored together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Axis:
    """Sizes and settings of a convolution along one spatial dimension."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    together: bool = False
    """True if one phase of a transposed convolution has all outputs along the dimension.

    Point t is then output t. Tap j multiplies the input (t + padding) // stride - dilation * j //
    stride, or 0 unless (t + padding) % stride equals dilation * j % stride.
    """


@dataclass(frozen=True)
class Phase:
    """The output points and kernel taps of one phase along one dimension.

    Point `t` in [0, points) is the output `output_step * t + output_start`. Tap `j` in [0, taps) is
    element `kernel_step * j + kernel_start` of the kernel, and multiplies the input `input_step * t
    + tap_step * j + input_start`.
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
    """Yield the phases of a convolution that have outputs, each as one `Phase` per dimension.

    A phase without taps is yielded too: its outputs are the bias.
    """
    yield from product(*(axis_phases(axis, transposed) for axis in axes))


def axis_phases(axis: Axis, transposed: bool) -> list[Phase]:
    """Return the phases along one dimension: one, or for a transposed convolution one per stride.

    The inputs of a phase of an axis with `together` do not follow from the phase.
    """
    if axis.together:
        return [Phase(axis.outputs, axis.kernel, 1, 0, 1, 0, 0, 1, 0)]
    return list(_transposed_phases(axis) if transposed else _only_phase(axis))


def _only_phase(axis: Axis) -> Iterator[Phase]:
    yield Phase(
        axis.outputs, axis.kernel, 1, 0, axis.stride, axis.dilation, -axis.padding, 1, 0
    )  # fmt: skip


def _transposed_phases(axis: Axis) -> Iterator[Phase]:
    """Yield the phases of a transposed convolution, by solving o + padding = stride * i + dilation
    * k for each first output `o`."""
    for first in range(min(axis.stride, axis.outputs)):
        yield transposed_phase(axis, first, len(range(first, axis.outputs, axis.stride)))


def transposed_phase(axis: Axis, first: int, points: int) -> Phase:
    """Return the phase with the `points` outputs `stride * t + first`."""
    common = math.gcd(axis.stride, axis.dilation)
    step, moved = axis.stride // common, axis.dilation // common
    remainder = (first + axis.padding) % axis.stride
    taps = start = source = 0
    if remainder % common == 0:
        # The taps k with dilation * k = remainder, modulo the stride.
        start = remainder // common * pow(moved, -1, step) % step if step > 1 else 0
        taps = len(range(start, axis.kernel, step))
        source = (first + axis.padding - axis.dilation * start) // axis.stride
    return Phase(points, taps, axis.stride, first, 1, -moved, source, step, start)
