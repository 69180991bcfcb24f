"""Compute the tiles of a scaled float16 convolution that contain NaN again in a second launch.

With the exact sum in the kernel that computes the tile from float16, a thread needs up to 200
registers and not 128, so fewer blocks fit. A second launch costs the launch and the store of a
flag. Times on an H200 in ms:

    layer                                          exact sum in the kernel   second launch
    64 channels on 32 x 256 x 256 places                      0.50                0.46
    the same, and a tanh                                      0.59                0.52
    64 to 128 channels, eight warps                           1.03                0.78
    the same, four warps and 128 columns                      0.75                0.75
"""

from __future__ import annotations

import math

from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.products.tiles import Tile

LONG = 1 << 35
"""Least number of multiplications of a kernel that pays for a second launch: 0.2 ms on an H200."""
WIDE, WARPS = 128, 8
"""Columns of a tile and warps of a block: with as many columns and fewer warps, the exact sum in
the same kernel costs nothing."""
SHARE = 64
"""Number of tiles of a program of the second launch. Without a flagged tile it only reads flags."""


def has_flags(conv: Convolution, tile: Tile) -> bool:
    """Return True if a second launch computes the tiles that contain NaN."""
    multiplications = conv.node.size * conv.taps * conv.channels_in
    slow = tile.columns < WIDE or tile.warps >= WARPS
    return conv.again is not None and slow and multiplications >= LONG


def kernel(name: str, arguments: str, programs: int) -> list[str]:
    """Return the lines of the Triton kernel that calls `NAME_tile` for each tile; `arguments` are
    names of tensors, `programs` is the number of tiles."""
    given = f"{arguments}, flags"
    sizes = "EXACT, ROWS, COLUMNS, DEPTH"
    return [
        "",
        "",
        "@triton.jit",
        f"def {name}(",
        f"    {given},",
        "    EXACT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,",
        "):",
        '    """Compute a tile and its flag; if EXACT, the tiles with a flag in float32."""',
        "    if EXACT:",
        f"        every = tl.program_id(0) + tl.num_programs(0) * tl.arange(0, {SHARE})",
        f"        if tl.max(tl.load(flags + every, mask=every < {programs}, other=0)) > 0:",
        f"            for k in range({SHARE}):",
        "                tile = tl.program_id(0) + tl.num_programs(0) * k",
        f"                if tl.load(flags + tile, mask=tile < {programs}, other=0) > 0:",
        f"                    {name}_tile({given}, tile, {sizes})",
        "    else:",
        f"        {name}_tile({given}, tl.program_id(0), {sizes})",
    ]


def launches(name: str, programs: int, arguments: list[str], others: str) -> list[str]:
    """Return the Python lines of both launches; `others` are the arguments after the tensors."""
    lines = [f"{name}_flags = torch.empty({programs}, dtype=torch.int32, "
             f"device={arguments[0]}.device)"]  # fmt: skip
    for is_exact, count in ((False, programs), (True, math.ceil(programs / SHARE))):
        lines += [
            f"{name}[({count},)](",
            f"    {', '.join(arguments)}, {name}_flags,",
            f"    {is_exact}, {others},",
            ")",
        ]
    return lines
