"""Write CUDA kernels of large pools in which a thread computes several results.

`strips`: results that are adjacent along a pooled dimension other than the last, whose windows
share elements. `vectors`: adjacent results along the last dimension, from vectors of elements; the
block stores its results to shared memory first, so that a warp writes adjacent ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES, Graph, Kind, Node, Window
from cuagent.expert.graph.storage import NestError, storage

LEAST_RESULTS = 1 << 20
"""Number of results from which on a thread computes several; fewer would leave multiprocessors
idle."""
MOST_LOADS = 64
"""Largest number of elements that a thread loads for its results."""
MOST_WASTE = 1.15
"""Largest ratio of computed results to those that exist."""
BLOCKS = (256, 128, 64)
"""Numbers of threads of a block that computes results of one line."""


@dataclass(frozen=True)
class Strips:
    """Results of a thread: `count` adjacent ones along dimension `dim`."""

    dim: int
    count: int
    lines: int
    """Number of places along `dim` whose elements the thread reads."""


@dataclass(frozen=True)
class Vectors:
    """Results of a thread: as many adjacent ones along the last dimension as a vector has
    elements, so that adjacent threads load adjacent vectors.
    """

    threads: int
    width: int
    """Number of elements of a vector."""
    before: int
    """Number of elements from the first one that is loaded to that at which the first result's
    window begins without padding."""
    vectors: int
    """Number of vectors that a thread loads."""
    base: Node
    strides: tuple[int, ...]
    offset: int


def strips_of(anchor: Node, sides: dict[int, Window]) -> Strips | None:
    """Return the strips of a pool; None if a thread should compute one result."""
    usable = anchor.kind is Kind.POOL and anchor.size >= LEAST_RESULTS
    if not usable or any(side.adaptive for side in sides.values()):
        return None
    last = max(k for k, n in enumerate(anchor.shape) if n > 1)
    for dim, side in sides.items():
        others = math.prod(s.kernel for k, s in sides.items() if k != dim)
        for count in (8, 4, 2):
            lines = (count - 1) * side.stride + (side.kernel - 1) * side.dilation + 1
            waste = math.ceil(side.count / count) * count / side.count
            if dim != last and waste <= MOST_WASTE and lines * others <= MOST_LOADS:
                return Strips(dim, count, lines)
    return None


def vectors_of(
    graph: Graph, anchor: Node, sides: dict[int, Window], members: set[str]
) -> Vectors | None:
    """Return the vectors of a pool over the last dimension of a tensor in memory; None if it is
    another pool.
    """
    (dim, side), *others = sides.items()
    usable = anchor.kind is Kind.POOL and anchor.size >= LEAST_RESULTS
    if not usable or others or dim != len(anchor.shape) - 1 or side.adaptive:
        return None
    if str(anchor.args[0]) in members:
        return None
    argument = graph.node(str(anchor.args[0]))
    try:
        base, strides, offset = storage(graph, argument)
    except NestError:
        return None
    width = 16 // ITEM_BYTES[base.dtype] if base.dtype in FLOATS else 1
    steps = (*strides[:-1], offset, side.extent)
    if width == 1 or strides[-1] != 1 or any(step % width for step in steps):
        return None
    start = -(-side.padding // width) * width
    span = (width - 1) * side.stride + (side.kernel - 1) * side.dilation + 1
    before = start - side.padding
    vectors = math.ceil((before + span) / width)
    wastes = {n: math.ceil(side.count / (n * width)) * n * width / side.count for n in BLOCKS}
    threads = next((n for n in BLOCKS if wastes[n] <= MOST_WASTE), 0)
    if not threads or vectors * width > MOST_LOADS:
        return None
    return Vectors(threads, width, before, vectors, base, strides, offset)
