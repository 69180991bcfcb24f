"""Compute some attention by two products and a softmax: of large heads in float32, and over
channels.

The library's fused attention keeps the result of a block in registers. For heads of 1,024 columns
it uses global memory and took 24 ms for 1.1 TFLOP on an H200, the rate of float32 arithmetic.
Products on tensor cores, with operands that are split into float16 parts, take less time even
though the scores are written and read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cuagent.expert.attention.kernel import has_kernel
from cuagent.expert.attention.products import Operand
from cuagent.expert.capture.editing import Edit, called, calls_any
from cuagent.expert.capture.export import Captured
from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.lowering import argument, dtype_of, shape_of
from cuagent.expert.products.qualify import splits

OPTIONS = ("attn_mask", "dropout_p", "is_causal")
"""Names of the options, from the fourth argument on, that an expanded call does not use."""


def are_products_faster(
    target: Target, dtype: str, query: tuple[int, ...], keys: int, width: int
) -> bool:
    """Return True if two products are faster than fused attention, by the sizes of its operands.

    `query` is the shape (*batch, rows, depth), `width` the number of columns of a value.
    """
    *batch, rows, depth = query
    count = math.prod(batch)
    if dtype != "float32" or target.device != "cuda" or has_kernel(target, dtype, depth, width):
        return False
    if rows * keys > rows * depth + keys * (depth + width):
        return False  # the scores would take more memory than the operands
    scored = splits(rows, keys, depth, target, count)
    return scored and splits(rows, width, keys, target, count)


LEAST_RATIO = 4
"""Least ratio of the elements of queries, keys and values to those of the scores for which two
products replace an attention whose operands the library's fused kernels cannot read."""


def is_over_channels(target: Target, operands: Sequence[Operand]) -> bool:
    """Return True for an attention among a few channels, each with many places, whose columns are
    not adjacent in memory (XCiT, EdgeNeXt, Restormer).

    The library's fused kernels refuse such columns. Its other path computes half precision in
    float32. Products read the operands as they are, and the scores are small.
    """
    *_, rows, _ = operands[0].shape
    keys = operands[1].shape[-2]
    elements = sum(math.prod(operand.shape[-2:]) for operand in operands)
    apart = any(
        operand.shape[-1] > 1 and operand.node.meta["val"].stride()[operand.order[-1]] != 1
        for operand in operands
    )
    return target.device == "cuda" and apart and elements >= LEAST_RATIO * rows * keys


ATTENTION = "scaled_dot_product_attention"
"""Name of the library's attention."""


def with_expanded(captured: Captured, target: Target) -> tuple[Captured, tuple[str, ...]]:
    """Return the graph with two products and a softmax for each call of the library's attention
    that they beat, and the names of these calls."""
    if not calls_any(captured, (ATTENTION,)):
        return captured, ()
    edit = Edit(captured)
    found = tuple(str(node.name) for node in edit.nodes if _expanded(edit, node, target))
    return (edit.result(), found) if found else (captured, ())


def _expanded(edit: Edit, node: Any, target: Target) -> bool:
    """Expand one call of the library's attention, if that is faster; return True if it was.

    Calls with a mask, groups of heads or dropout stay.
    """
    if called(node) != ATTENTION:
        return False
    query, key, value = node.args[:3]
    options = [argument(node, n, name, None) for n, name in enumerate(OPTIONS, 3)]
    if any(options) or len({shape_of(t)[:-2] for t in (query, key, value)}) > 1:
        return False
    *_, keys, width = shape_of(value)
    if not are_products_faster(target, dtype_of(query), shape_of(query), keys, width):
        return False
    import torch

    aten = torch.ops.aten
    scale = node.kwargs.get("scale")
    factor = 1 / math.sqrt(shape_of(query)[-1]) if scale is None else float(scale)
    edit.graph.inserting_before(node)
    turned = edit.call(aten.transpose.int, (key, -2, -1))
    scores = edit.call(aten.mul.Tensor, (edit.call(aten.matmul.default, (query, turned)), factor))
    weights = edit.call(aten.softmax.int, (scores, -1))
    edit.replace(node, edit.call(aten.matmul.default, (weights, value)))
    return True
