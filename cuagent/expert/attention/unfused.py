"""Compute attention of large heads in float32 by two products and a softmax.

The library's fused attention keeps the result of a block in registers. For heads of 1,024 columns
it uses global memory and took 24 ms for 1.1 TFLOP on an H200, the rate of float32 arithmetic.
Products on tensor cores, with operands that are split into float16 parts, take less time even
though the scores are written and read.
"""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.attention.kernel import has_kernel
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
