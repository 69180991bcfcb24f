"""Choose the tile sizes of a convolution's kernel, in the order of how often they were the fastest
(H200)."""

from __future__ import annotations

import math
from dataclasses import replace

from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.convolutions.phases import axis_phases
from cuagent.expert.products.tiles import Tile, ranked

SHALLOW = Tile(128, 128, 64, 8, 2, 1.0)
"""Tile of a pointwise convolution with at most 64 input channels, whose sum then has one step. On
an H200 it was 1.4 times as fast as 128 x 128 x 32 on 64 channels."""
SHAPES = {
    16: ((128, 4), (256, 8), (64, 4)),
    32: ((128, 4), (256, 8), (64, 4)),
    64: ((128, 4), (256, 8), (64, 4)),
    128: ((128, 4), (128, 8), (64, 4)),
    256: ((64, 8), (128, 8), (64, 4)),
}
"""(rows, warps) of the tiles to try, the best first; the key is the number of columns of the
tile.
"""


ACCUMULATORS = 64
"""Largest number of sums that a thread of a pointwise convolution in half precision has.

Compiled for sm_90 (Triton 3.7), tiles of 128 x 256 with eight warps spilled 1.5 to 1.9 kB and some
of 128 x 128 with four warps 0.1 to 0.3 kB, though products with the same tiles do not: the kernel
also holds the place of each row.
"""
GROUP_ROWS = 64
"""Least number of rows of the tiles to try after the first.

Four warps of sm_90 multiply 64 rows together (wgmma). With fewer, the compiler uses the
instructions of earlier GPUs (mma.sync).
"""
PARTIAL_ROWS = 128
"""Number of spatial positions of a tile in a kernel that also stores partial sums over them."""


def tiles(conv: Convolution, processors: int, precision: str = "tf32") -> tuple[Tile, ...]:
    """Return the possible tiles of a convolution's kernel, the best by estimate first.

    `precision`: that of `tl.dot` for float32 operands.
    """
    found = _tiles(conv, processors, precision)
    if conv.copy:
        # The scale test of the copy needs all channels of a place in one tile.
        columns = max(16, 1 << (conv.channels_out - 1).bit_length())
        wide = tuple(t for t in found if t.columns >= columns)
        found = wide or (replace(found[0], columns=columns),)
    if not conv.partials:
        return found
    rows = PARTIAL_ROWS // (2 if conv.pair is not None else 1)
    fits = tuple(t for t in found if t.rows == rows)
    return fits or (replace(found[0], rows=rows),)


def pointwise_tiles(
    rows: int, columns: int, dtype: str, processors: int, groups: int = 1
) -> tuple[Tile, ...]:
    """Return the tiles of a pointwise convolution, the best by the model of products first."""
    found = ranked(rows, columns, dtype, processors, groups)
    if dtype == "float32":
        return found
    return tuple(t for t in found if t.rows * t.columns <= ACCUMULATORS * 32 * t.warps)


def _tiles(conv: Convolution, processors: int, precision: str) -> tuple[Tile, ...]:
    float32 = conv.node.dtype == "float32"
    if not conv.right:
        columns = max(16, 1 << (conv.channels_out - 1).bit_length())
        columns = columns if conv.reduces else min(columns, 64)
        return tuple(Tile(rows, columns, 16, 4, 1, 1.0) for rows in (64, 128, 32))
    if conv.taps == 1 and not conv.reduces:
        sizes = rows_of(conv), conv.columns
        found = pointwise_tiles(*sizes, conv.node.dtype, processors, conv.groups)
        shallow = float32 and conv.channels_in <= 64 < conv.columns
        found = (SHALLOW, *found) if shallow else found
        return tuple(replace(t, depth=min(t.depth, conv.most_depth)) for t in found)
    columns = max(16, 1 << (conv.columns - 1).bit_length())
    columns = columns if conv.reduces else min(columns, 128)
    depth = 32 if float32 and not conv.scale else 64
    if not conv.merged:
        depth = min(depth, conv.most_depth)
    else:
        taps = math.prod(
            max(phase.taps for phase in axis_phases(axis, conv.transposed)) for axis in conv.axes
        )
        terms = taps * conv.channels_in
        depth = min(depth, max(16, 1 << (terms - 1).bit_length()))
    half = 2 if conv.pair is not None else 1
    shapes: tuple[tuple[int, int], ...] = SHAPES[columns]
    if columns == 128:
        three_parts = float32 and not conv.scale and precision == "tf32x3"
        shapes = _of_128_columns(conv, three_parts)
    found = tuple(Tile(rows // half, columns, depth, warps, 3, 1.0) for rows, warps in shapes)
    return found[0], *(tile for tile in found[1:] if tile.rows >= GROUP_ROWS)


def _of_128_columns(conv: Convolution, three_parts: bool) -> tuple[tuple[int, int], ...]:
    """Return the (rows, warps) to try for 128 columns.

    Time of eight warps over that of four on an H200: 0.53 to 0.92 on five layers in float16, 1.07
    on two others, and 2.0 with a pool behind 128 columns. In scaled float16 with the exact sum in
    the same kernel the ratio was 1.16 to 1.37 on 64 channels of 128 x 128 places, and 0.93 to 1.02
    on 256 channels of 28 x 28. The exact sum raises the registers of a thread from 128 to 170, so
    one block less fits.

    With four warps and 128 rows, a merged sum and a sum of three TF32 products (`three_parts`) need
    more than 255 registers. Compiled for sm_90 they spill 1.3 to 1.9 kB and 0.6 kB. Two phases with
    64 rows each do not spill in their loops.
    """
    four, eight, small = SHAPES[128]
    if conv.merged:
        return eight, small
    if three_parts and conv.pair is None:
        return (small, eight) if conv.pool else (eight, small)
    if conv.reduces:
        return eight, four, small
    return four, eight, small


def phase_count(conv: Convolution) -> int:
    """Return the number of phases of a convolution; two phases that are computed together count as
    one.
    """
    counts = [len(axis_phases(axis, conv.transposed)) for axis in conv.axes]
    return math.prod(1 if d == conv.pair else count for d, count in enumerate(counts))


def rows_of(conv: Convolution) -> int:
    """Return the number of rows (samples times output points) of the implicit matrix product of one
    phase."""
    return conv.samples * math.prod(
        axis_phases(axis, conv.transposed)[0].points for axis in conv.axes
    )
