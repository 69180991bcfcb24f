"""Choose how a cluster of blocks divides the rows, units and columns of a recurrence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuagent.expert.capture.subject import Target
from cuagent.expert.recurrences.cells import GATES

WARPS = 16
"""Number of warps of a block; a thread then has up to 128 registers."""
CLUSTERS = (1, 2, 4, 8)
"""Cluster sizes, in blocks, that every GPU with clusters can run."""
MOST_WEIGHTS = 64
"""Largest number of weights in the registers of a thread."""
LARGE_CLUSTER = 16
"""Number of blocks of a cluster that has weights in shared memory."""
MOST_STORED = 160 << 10
"""Largest size in bytes of a block's weights in shared memory, besides its states."""
MOST_CYCLES = 6500
"""Largest estimate of a step's cycles for which weights are in shared memory.

For 8 rows of 512 units, cuDNN took 6.1 us for a step of a GRU on an H200, some 11,000 cycles. It
computes a step of more rows in little more time.
"""
MOST_PASSES = 4
MOST_STATE = 48 << 10
"""Largest size in bytes of the states that a kernel stores in static shared memory."""
BARRIER, PASS = 900, 400
"""Estimated cycles of a step and of a pass over rows, in addition to those of the products."""
LANES = 32


@dataclass(frozen=True)
class Layout:
    """Division of a recurrence's rows, units and columns among clusters, warps and lanes."""

    cluster: int
    """Number of blocks in a cluster."""
    units: int
    """Number of hidden units that a warp computes, a power of 2."""
    slots: int
    """Number of gates of a cell, rounded up to a power of 2."""
    together: int
    """Number of rows that a warp sums in one pass, a power of 2."""
    passes: int
    """Number of passes in which a cluster computes all its rows."""
    chunks: int
    """Number of groups of four columns that each lane multiplies."""
    stored: int = 0
    """Number of the last of these groups whose weights are in shared memory."""

    @property
    def rows(self) -> int:
        """Number of rows that a cluster computes."""
        return self.together * self.passes

    @property
    def values(self) -> int:
        """Number of sums that a warp computes in one pass, divided among its lanes."""
        return self.together * self.units * self.slots


def layout(cell: str, rows: int, hidden: int, processors: int, large: bool) -> Layout | None:
    """Return the fastest layout by an estimate of the cycles.

    None if the weights do not fit into the registers of a cluster. `large`: they may also be in the
    shared memory of a cluster of 16 blocks, if the library is slower.
    """
    shapes = [s for cluster in CLUSTERS for s in _layouts(cell, rows, hidden, cluster)]
    found = [(_cycles(cell, rows, shape, processors), shape.cluster, shape) for shape in shapes]
    if not found and large:
        shapes = _layouts(cell, rows, hidden, LARGE_CLUSTER)
        found = [(_cycles(cell, rows, shape, processors), shape.cluster, shape) for shape in shapes]
        found = [item for item in found if item[0] <= MOST_CYCLES]
    return min(found, key=lambda item: item[:2])[2] if found else None


def _cycles(cell: str, rows: int, shape: Layout, processors: int) -> int:
    """Return an estimate of the cycles of a step."""
    at_once = max(1, processors * 7 // 8 // shape.cluster)
    waves = math.ceil(math.ceil(rows / shape.rows) / at_once)
    weights = GATES[cell] * shape.units * 4
    products = shape.together * weights * shape.chunks * WARPS // 4
    # Shared memory delivers one number for each lane of one warp in a cycle.
    loads = weights * shape.stored * WARPS
    return waves * (BARRIER + shape.passes * (PASS + products + loads))


def _layouts(cell: str, rows: int, hidden: int, cluster: int) -> list[Layout]:
    gates = GATES[cell]
    slots, chunks = _power_of_2(gates), math.ceil(hidden / (4 * LANES))
    units = _power_of_2(math.ceil(hidden / (cluster * WARPS)))
    stored = max(0, chunks - MOST_WEIGHTS // (gates * units * 4))
    if stored == chunks or units * slots > LANES or (stored and cluster < LARGE_CLUSTER):
        return []
    if gates * units * stored * 4 * WARPS * LANES * 4 > MOST_STORED:
        return []
    shapes = []
    for passes in range(1, MOST_PASSES + 1):
        together = 1
        while together * units * slots <= LANES and together < 2 * rows:
            shape = Layout(cluster, units, slots, together, passes, chunks, stored)
            if 2 * shape.rows * chunks * 4 * LANES * 4 <= MOST_STATE:
                shapes.append(shape)
            together *= 2
    return shapes


def _power_of_2(count: int) -> int:
    return 1 << (count - 1).bit_length()


def has_kernel(cell: str, rows: int, hidden: int, dtype: str, target: Target) -> bool:
    """Return True if a generated CUDA kernel can compute this recurrence on the target."""
    if target.device != "cuda" or target.capability < (9, 0) or dtype != "float32":
        return False
    return layout(cell, rows, hidden, target.processors, target.has_clusters) is not None
