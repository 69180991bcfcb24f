"""Write a convolution with its epilogue as a Triton kernel: an implicit matrix product.

A row is one output point of one sample (`points`), a column one output channel, and the sum runs
over taps and input channels (`taps`). `stores` writes the lines after the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from cuagent.expert.convolutions import flags
from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.convolutions.points import (
    output_places,
    over_axes,
    phase_constants,
    point_coordinates,
    points_of_phase,
    tile_index,
    tiles_of_samples,
)
from cuagent.expert.convolutions.stores import (
    address_of,
    pooled,
    reduction_of,
    stores,
    tile_sums,
)
from cuagent.expert.convolutions.taps import sum_over_taps
from cuagent.expert.convolutions.tiles import phase_count
from cuagent.expert.graph.graph import Part
from cuagent.expert.products.epilogue import epilogue, pointer
from cuagent.expert.products.tiles import Tile
from cuagent.expert.streaming.expressions import identifier

EXTREMES = ("max", "amax", "min", "amin")
"""Reductions to an extreme."""


def render(
    name: str,
    conv: Convolution,
    dtype_of: Callable[[str], str],
    precision: str,
    parts: Mapping[str, Part],
    tile: Tile,
) -> str:
    """Return the text of the Triton kernel; `precision` is that of `tl.dot` for float32
    operands. `parts` is as in `Graph`. Only the number of tiles is that of `tile`.
    """
    outputs = [f"{identifier(n)}_out" for n in conv.outputs]
    arguments = ", ".join([*outputs, *(pointer(n) for n in conv.tensors)])
    lines = [
        "@triton.jit",
        f"def {name}{'_tile' if conv.flagged else ''}(",
        f"    {arguments}{', flags, tile' if conv.flagged else ''},",
        *(["    EXACT: tl.constexpr,"] if conv.flagged else []),
        "    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        f'    """{conv.samples} samples, {conv.channels_in} to {conv.channels_out} channels."""',
        f"    program = {'tile' if conv.flagged else 'tl.program_id(0)'}",
        f"    across = tl.cdiv({conv.columns}, COLUMNS)",
        "    n = program % across * COLUMNS + tl.arange(0, COLUMNS)",
        "    program = program // across",
        *(_group(conv) if conv.groups > 1 else []),
        *phase_constants(conv),
        f"    points = {over_axes('points_{}', len(conv.axes))}",
        *tiles_of_samples(conv),
        f"    row = {tile_index(conv)} * ROWS + tl.arange(0, ROWS)",
        *point_coordinates(conv),
        *sum_over_taps(conv, precision),
        *output_places(conv),
        *epilogue(
            conv.node.name,
            conv.bias,
            conv.epilogue,
            conv.reads,
            address_of(conv),
            reduction_of(conv),
        ),
        *(pooled(conv, conv.pool) if conv.pool else []),
        *(tile_sums(conv, conv.partials) if conv.partials else []),
        *stores(conv, dtype_of, parts),
        *(flags.kernel(name, arguments, _programs(conv, tile)) if conv.flagged else []),
    ]
    return "\n".join(lines)


def _group(conv: Convolution) -> list[str]:
    """Return the Triton lines that find the channel group of a program, and its output channels.

    Columns past the end of a group multiply weights of the next one, and are not stored.
    """
    return [
        f"    group = program % {conv.groups}",
        f"    program = program // {conv.groups}",
        f"    n += group * {conv.columns}",
    ]


def launches(name: str, conv: Convolution, tile: Tile, arguments: list[str]) -> list[str]:
    """Return the Python lines that launch the kernel."""
    programs = _programs(conv, tile)
    sizes = f"{tile.rows}, {tile.columns}, {tile.depth}, "
    sizes += f"num_warps={tile.warps}, num_stages={tile.stages}"
    # A product that is not rounded before its maximum is subtracted may have an infinite power.
    sizes += ", enable_fp_fusion=False" if any(n.op in EXTREMES for n in conv.epilogue) else ""
    if conv.flagged:
        return flags.launches(name, programs, arguments, sizes)
    return [f"{name}[({programs},)](", f"    {', '.join(arguments)},", f"    {sizes},", ")"]


def _programs(conv: Convolution, tile: Tile) -> int:
    """Return the number of tiles, each of which is a program."""
    across = math.ceil(conv.columns / tile.columns) * conv.groups
    points = points_of_phase(conv)
    if conv.pool:
        points = math.prod(conv.pool.counts) * conv.pool.elements
    count = math.ceil(conv.samples * points / tile.rows)
    if conv.partials:
        count = conv.samples * math.ceil(points / tile.rows)
    return count * across * phase_count(conv)
