"""Choose the tile size of a matrix product's kernel by a cost model.

The model counts whole waves of tiles over the multiprocessors, and the part of each tile that lies
inside the matrix. The relative speeds of full tiles are estimates from published kernels (Triton on
an H200), to be replaced by measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tile:
    """Tile size and launch options of a product's kernel.

    `rows`, `columns` and `depth` are the elements of a tile along M, N and K. `warps`, `stages`:
    Triton's launch options. `speed`: speed of a full tile relative to the fastest one.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    speed: float


FLOAT32 = (
    Tile(128, 128, 32, 8, 3, 1.0),
    Tile(128, 64, 32, 4, 3, 0.9),
    Tile(64, 128, 32, 4, 3, 0.9),
    Tile(64, 64, 32, 4, 4, 0.75),
    Tile(32, 64, 32, 4, 4, 0.5),
    Tile(16, 64, 64, 4, 4, 0.3),
    Tile(64, 16, 64, 4, 4, 0.3),
)
"""Tiles for float32 products that are computed as three TF32 products: operands have 4 bytes, and
are split in registers."""
SPLIT = (
    Tile(128, 128, 64, 8, 3, 1.0),
    Tile(64, 64, 64, 4, 3, 0.95),
    Tile(64, 128, 64, 4, 3, 0.85),
)
"""Tiles for products whose operands were split into float16 parts beforehand. On an H200 a product
of 4096 x 4096 x 4096 took 0.73, 0.76 and 0.85 ms with them (cuBLAS 2.7 to 3.0), and 1.09 ms with
four stages of 64 x 64."""
HALF = (
    Tile(128, 256, 64, 8, 3, 1.0),
    Tile(128, 128, 64, 4, 3, 0.97),
    Tile(128, 128, 64, 8, 4, 0.85),
    Tile(64, 128, 64, 4, 4, 0.75),
    Tile(64, 64, 64, 4, 5, 0.55),
    Tile(64, 16, 128, 4, 5, 0.2),
    Tile(16, 64, 128, 4, 5, 0.2),
)
FEW_ROWS = (
    Tile(16, 64, 128, 4, 5, 1.0),
    Tile(16, 32, 256, 4, 5, 1.0),
    Tile(16, 16, 512, 4, 5, 1.0),
)
"""Tiles for half-precision products of at most 16 rows: a block has 64 KiB of weights in flight,
which a multiprocessor needs at the full rate of the memory. Estimates, not measured."""
SMALL = (
    Tile(32, 32, 32, 1, 2, 1.0),
    Tile(32, 32, 32, 2, 2, 1.0),
)
"""Tiles for batches of products of at most 32 x 32, one for each block. Up to 32 blocks of one warp
share a multiprocessor, so that loads of some overlap with sums of others. Estimates, not
measured."""
SHARED = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
"""Shared memory of a block in KiB, by compute capability; 99 for all others from 8.6 on."""
LEAST_SHARED = 99
MOST_WARPS = 16
"""Largest number of warps of a block; each thread has at most 128 registers then."""
GROUP = 8
"""Number of tile rows that are computed together, so that their operands stay in the L2 cache."""


def fitted(tile: Tile, capability: tuple[int, int], item_bytes: int, rights: int = 1) -> Tile:
    """Return the tile with at most as many pipeline stages as the shared memory of a block holds.

    A stage has a tile of the left operand and `rights` tiles of right operands.
    """
    stage = (tile.rows + rights * tile.columns) * tile.depth * item_bytes
    most = (SHARED.get(capability, LEAST_SHARED) << 10) // stage
    return replace(tile, stages=max(1, min(tile.stages, most)))


def with_registers(tile: Tile, sums: int, most: int) -> Tile:
    """Return the tile with so many warps that a thread has at most `most` sums, if 16 suffice.

    `sums`: number of values that are kept for each element of the tile.
    """
    warps = tile.warps
    while sums * tile.rows * tile.columns > 32 * warps * most and warps < MOST_WARPS:
        warps *= 2
    return replace(tile, warps=warps)


def ranked(
    rows: int,
    columns: int,
    dtype: str,
    processors: int,
    batch: int = 1,
    among: tuple[Tile, ...] = (),
) -> tuple[Tile, ...]:
    """Return the tiles for a product of `rows` x `columns`, the best by the model first.

    `processors`: number of multiprocessors. `among`: the tiles to rank; () for those of `dtype`.
    """
    tiles = among or (FLOAT32 if dtype == "float32" else HALF)
    return tuple(sorted(tiles, key=lambda t: -_score(t, rows, columns, processors, batch)))


def occupied(rows: int, columns: int, dtype: str, processors: int, batch: int = 1) -> float:
    """Return the fraction (0 to 1) of the multiprocessors that have a tile, with the best tile
    size."""
    tile = ranked(rows, columns, dtype, processors, batch)[0]
    count = batch * math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns)
    return min(1.0, count / processors)


def _score(tile: Tile, rows: int, columns: int, processors: int, batch: int) -> float:
    """Return the predicted useful work per unit of time, relative to full waves of the fastest
    tile."""
    count = batch * math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns)
    waves = math.ceil(count / processors)
    useful = batch * rows * columns / (count * tile.rows * tile.columns)
    return tile.speed * useful * count / (waves * processors)
