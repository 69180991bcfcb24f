"""Decide if a generated kernel computes a product of half precision with its epilogue in less time
than the library's product and an elementwise kernel.

The model counts whole waves of tiles. The time of a tile is that of its sum over K plus that of its
epilogue, because few blocks share a multiprocessor and little overlaps. Times on an H200 in us:

    result         K      epilogue       one kernel   two kernels
    4096 x 14336   4096   silu, product     830        620 + 117
    4096 x 9728    2560   silu, product     390        270 + 50
    2048 x 9216    2304   GELU, product     177        118 + 28
    4096 x 8192    2048   silu, product     253        177 + 66
    4096 x 3072    1024   silu, product      58         37 + 26
    1024 x 2816    1024   silu, product      18         11 + 4
    12608 x 3072   768    GELU              125         90 + 56
    8192 x 3072    768    tanh in nine steps 97         56 + 33
    6000 x 3072    768    GELU               68         44 + 27
    4096 x 3072    768    GELU               43         30 + 17
    4928 x 2048    512    x sigmoid(1.7 x)   32         19 + 8

The model differs from these times by at most 8 % or 2 us. Where it has nearly equal
times (`MARGIN`), the library computes the product: for 2048 x 8192 with K = 2048, silu and product,
the model has 126 and 127 us, and a later profile 130 for one kernel and about 112 for two. They are
shares of profiles of whole
modules; 4 us is an estimate, because that profile lists only longer kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import ITEM_BYTES, Kind, Node
from cuagent.expert.products.product import Product
from cuagent.expert.products.tiles import ranked

FAST_LIBRARY = (9, 0)
"""Least compute capability for which the times hold. The library's kernels use instructions there
that Triton's kernels use less well; on older GPUs both are about as fast."""
LEAST_REUSE = 256
"""Rows x columns / (rows + columns) from which on arithmetic bounds a product's time. Below it,
both read the operands at the same rate."""

# Generated kernels, in seconds.
TERM = 3.9e-13
"""Time of one term of K for each element of a full tile."""
BLOCK = 0.8e-6
"""Time to begin and to end a block."""
BYTE = 1.7e-11
"""Time of each byte of a tile that the epilogue reads or writes."""
SLOT = 3.05e-12
"""Time of one instruction of the epilogue for each element of a tile."""
SLOTS = {
    "exp": 10, "exp2": 10, "exp_nonpositive": 10, "expm1": 14, "log": 10, "log1p": 16, "div": 11,
    "sqrt": 11, "rsqrt": 9, "reciprocal": 10, "sigmoid": 23, "silu": 23, "gelu": 23,
    "gelu_tanh": 28, "tanh": 37, "erf": 23, "softplus": 25, "mish": 28, "elu": 16, "selu": 17,
    "sin": 30, "cos": 30, "pow": 60,
}  # fmt: skip
"""Instructions of an operation, of which one of the special function unit counts as eight; 1 for
operations not listed, and none for views and casts."""

# The library.
RATE, DEPTH = 820e12, 150
"""Floating-point operations per second of products in cuBLAS, for a K that is large compared with
`DEPTH`. The time for other K is that of K + `DEPTH`."""
START = 1.5e-6
"""Time to begin and to end a product of the library, in seconds."""
BANDWIDTH, CACHED_BANDWIDTH = 3e12, 5e12
"""Bytes per second of an elementwise kernel, and of one whose tensors the L2 cache holds."""
CACHE = 45 << 20
"""Largest size in bytes of tensors that the L2 cache holds."""
LAUNCH = 2e-6
"""Time between two kernels and to begin the second one, in seconds."""
MARGIN = 0.015
"""Least share of the library's time that a kernel with an epilogue must save by the model."""
DOUBT = 0.15
"""Share of the library's time up to which the model may err. A measurement decides where a kernel
with an epilogue saves less."""


def epilogue_pays(product: Product, tensors: Sequence[Node], target: Target) -> bool:
    """Return True if a product with its epilogue takes less time than the library's product and an
    elementwise kernel. `tensors` are as in `share_of_library`."""
    return share_of_library(product, tensors, target) < 1 - MARGIN


def share_of_library(product: Product, tensors: Sequence[Node], target: Target) -> float:
    """Return the time of a product with its epilogue, relative to the library's product and an
    elementwise kernel; 0 where no model is needed, because the former is faster.

    `tensors` are those that this kernel would read and write, the product's result first.
    """
    rows, columns = product.rows, product.columns
    if target.capability < FAST_LIBRARY or rows * columns < LEAST_REUSE * (rows + columns):
        return 0.0
    sizes = [node.size * ITEM_BYTES[node.dtype] for node in tensors]
    moved = sum(sizes)
    rate = CACHED_BANDWIDTH if moved <= CACHE else BANDWIDTH
    library = library_time(product, sizes[0]) + LAUNCH + moved / rate
    return own_time(product, moved - sizes[0], target) / library


def own_time(product: Product, moved: int, target: Target) -> float:
    """Return the time of a generated kernel, whose epilogue reads and writes `moved` bytes."""
    rows, columns, dtype = product.rows, product.columns, product.node.dtype
    tile = ranked(rows, columns, dtype, target.processors)[0]
    tiles = math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns)
    slots = sum(
        SLOTS.get(node.op, 1)
        for node in product.epilogue
        if node.kind is Kind.POINTWISE and node.op != "cast"
    )
    element = TERM * product.depth / tile.speed + SLOT * slots + BYTE * moved / (rows * columns)
    wave = BLOCK + tile.rows * tile.columns * element
    operands = ITEM_BYTES[dtype] * product.depth * (rows + columns)
    return max(math.ceil(tiles / target.processors) * wave, (operands + moved) / BANDWIDTH)


def library_time(product: Product, written: int) -> float:
    """Return the time of the library's product, which writes `written` bytes."""
    rows, columns, depth = product.rows, product.columns, product.depth
    operands = ITEM_BYTES[product.node.dtype] * depth * (rows + columns)
    operations = 2 * rows * columns * (depth + DEPTH)
    return max(START + operations / RATE, (operands + written) / BANDWIDTH)
