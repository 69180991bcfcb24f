"""Decide if an epilogue saves more time than a generated product of half precision costs.

The model compares the rates of both products with the bytes that a kernel behind the library's
product would move. Times of `silu(x @ gate) * up` on an H200 in ms:

    result         K      one kernel   two kernels
    4096 x 14336   4096      0.83      0.62 + 0.12
    4096 x 9728    2560      0.39      0.27 + 0.05
"""

from __future__ import annotations

from collections.abc import Iterable

from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import ITEM_BYTES, Node

FAST_LIBRARY = (9, 0)
"""Least compute capability for which the rates hold. The library's kernels use instructions there
that Triton's kernels use less well; on older GPUs both are about as fast."""
OWN_RATE, LIBRARY_RATE = 580e12, 770e12
"""Floating-point operations per second of large products in generated kernels and in cuBLAS."""
BANDWIDTH = 3e12
"""Bytes per second of an elementwise kernel."""
LEAST_REUSE = 256
"""Rows x columns / (rows + columns) from which on arithmetic bounds a product's time. Below it,
both read the operands at the same rate."""


def epilogue_pays(
    rows: int, columns: int, depth: int, tensors: Iterable[Node], target: Target
) -> bool:
    """Return True if a product with its epilogue takes less time than the library's product and an
    elementwise kernel.

    `tensors` are those that this kernel would read and write.
    """
    if target.capability < FAST_LIBRARY or rows * columns < LEAST_REUSE * (rows + columns):
        return True
    operations = 2 * rows * columns * depth
    lost = operations / OWN_RATE - operations / LIBRARY_RATE
    return lost < sum(node.size * ITEM_BYTES[node.dtype] for node in tensors) / BANDWIDTH
