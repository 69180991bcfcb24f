"""Decide if one phase of a transposed convolution has all outputs along the last dimension.

A phase stores every stride-th output, so that each sector of memory is stored in parts by several
phases. One phase for all outputs stores whole sectors, and multiplies zeros where a tap does not
reach an output. It is chosen if the stores that it saves take longer than the products that it
adds.
"""

from __future__ import annotations

import math

from cuagent.expert.convolutions.phases import Axis, axis_phases
from cuagent.expert.convolutions.qualify import INSTRUCTIONS_PER_SECOND

STORED_BYTES_PER_SECOND = 3.2e12
"""Rate at which a GPU stores sectors. A part of a sector takes as long as a whole one: 64 channels
of 16 x 318 x 638 places with a stride of 5, stored in five parts for each sector, took 1.31 ms on
an H200."""
SECTOR = 32
"""Bytes of a sector of memory."""
OPERATIONS_PER_SECOND = {2: 250e12, 4: 60e12}
"""Estimated rate of the kernels' products by bytes of an operand: half precision, and three TF32
products."""
LOAD = 2.5
"""Estimated instructions to load an element of the input, of which 16 bytes are loaded together."""
MOST_COLUMNS = 128
"""Largest number of output channels that share a loaded element."""


def stores_together(
    axes: tuple[Axis, ...], channels: int, columns: int, operand: int, result: int, merged: bool
) -> bool:
    """Return True if the last dimension of a transposed convolution should have one phase.

    `channels` and `columns` are the input and output channels of a group, `operand` and `result`
    bytes of an element. `merged`: the sum is over one index of taps and channels. A stride of 2 is
    excluded: a pair of phases is stored together.
    """
    last = axes[-1]
    if last.stride <= 2 or (merged and operand == 4):
        # A load of a single element has too many conditions: compiled for sm_90, a step of the sum
        # with 8 channels in 3 x 5 windows had 835 instructions instead of 509, and more steps.
        return False
    others = math.prod(_mean_taps(axis) for axis in axes[:-1])
    added = channels * others * (last.kernel - _mean_taps(last))
    loads = LOAD / min(columns, MOST_COLUMNS)
    seconds = added * (2 / OPERATIONS_PER_SECOND[operand] + loads / INSTRUCTIONS_PER_SECOND)
    parts = min(last.stride, SECTOR // result)
    return result * (parts - 1) / STORED_BYTES_PER_SECOND > seconds


def _mean_taps(axis: Axis) -> float:
    """Return the mean number of taps of an output along a dimension."""
    found = axis_phases(axis, True)
    return sum(phase.points * phase.taps for phase in found) / axis.outputs
