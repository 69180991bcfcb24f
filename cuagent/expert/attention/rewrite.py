"""Replace softmax(scale * q k^T + mask) v in a captured graph by one call of the library's
attention.

The result is equal in exact arithmetic. Preconditions: the softmax is over the keys; only the
product with the values reads its result; queries, keys, values and result have one floating-point
dtype and one head size; between the products are only copies, positive factors, added tensors, and
fills of minus infinity or at most -1e9. Repeated heads of keys and values are read without a copy
where the library supports it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum
from typing import Any

from cuagent.expert.attention.heads import CALL, NAMES, match_of_call
from cuagent.expert.attention.kernel import fills_few_rows, has_kernel
from cuagent.expert.attention.masks import (
    Mask,
    is_causal_mask,
    keeps_all,
    kernel_steps,
    mask_of,
    with_adjacent_keys,
)
from cuagent.expert.attention.operators import scored_attention
from cuagent.expert.attention.products import Operand, batched_product
from cuagent.expert.attention.repeats import RANK, grouped
from cuagent.expert.attention.replacement import Match, placed, replace_match
from cuagent.expert.attention.scores import Scores, copied, read_scores
from cuagent.expert.attention.unfused import ATTENTION, are_products_faster, is_over_channels
from cuagent.expert.capture.editing import Edit, called, calls_any
from cuagent.expert.capture.export import Captured
from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import FLOATS
from cuagent.expert.graph.lowering import argument, dtype_of, shape_of

SOFTMAX = ("softmax", "_softmax")
"""Names of the operators that compute a softmax."""


class Own(StrEnum):
    """When to compute attention by a generated kernel instead of the library."""

    NEVER = "never"
    NEEDED = "needed"
    """Only if the library cannot compute this attention in one call."""
    ALWAYS = "always"


def with_attention(
    captured: Captured, target: Target, own: Own = Own.NEVER
) -> tuple[Captured, tuple[str, ...]]:
    """Return the graph with fused attention calls, and the names of the softmax and attention nodes
    that were replaced."""
    if not calls_any(captured, (*SOFTMAX, ATTENTION)):
        return captured, ()
    edit = Edit(captured)
    found = []
    for node in edit.nodes:
        match = _match(edit, node)
        fused = match is not None and _replaced(edit, match, target, own)
        simpler = _without_mask(edit, node) or _with_readable_mask(edit, node, target)
        fused = fused or _by_kernel(edit, node, target, own) or _without_copies(edit, node, target)
        if fused or simpler:
            found.append(str(node.name))
    return (edit.result(), tuple(found)) if found else (captured, ())


def _match(edit: Edit, node: Any) -> Match | None:
    if node.op != "call_function" or called(node) not in SOFTMAX:
        return None
    if node.args[1] not in (-1, len(shape_of(node)) - 1) or dtype_of(node) not in FLOATS:
        return None
    weights = node
    while len(weights.users) == 1 and copied(reader := next(iter(weights.users))) is weights:
        weights = reader
    scores = read_scores(edit, node.args[0])
    if scores is None or len(weights.users) != 1 or weights in edit.outputs:
        return None
    last = next(iter(weights.users))
    product = batched_product(last)
    if product is None or product.bias is not None or product.scale != 1:
        return None
    rank = len(shape_of(weights))
    straight = tuple(range(rank))
    if product.left == Operand(weights, straight):
        values, order = product.right, product.order
    elif product.right == Operand(weights, straight):
        # In an einsum whose first operand is the values, the rows are the head size.
        turned = (*straight[:-2], rank - 1, rank - 2)
        values, order = product.left, tuple(turned[d] for d in product.order)
    else:
        return None
    # A product's operand ends with the summed dimension; here these are the keys.
    values = Operand(values.node, (*values.order[:-2], values.order[-1], values.order[-2]))
    return Match(node, last, scores, values, order)


def _replaced(edit: Edit, match: Match, target: Target, own: Own) -> bool:
    """Replace a match by an attention call; return False if a precondition is not met."""
    product, dtype = match.scores.product, dtype_of(match.last)
    shape = product.left.shape
    keys, width = match.values.shape[-2:]
    if own is not Own.NEVER and are_products_faster(target, dtype, shape, keys, width):
        return False
    if is_over_channels(target, (product.left, product.right, match.values)):
        return False
    simple = match.scores.simple and shape[-1] == match.values.shape[-1]
    if own is not Own.NEVER and not has_kernel(target, dtype, shape[-1], match.values.shape[-1]):
        own = Own.NEVER
    pairs, sizes = math.prod(shape[:-2]), (shape[-2], match.values.shape[-2])
    if own is not Own.NEVER and fills_few_rows(target, dtype, pairs, *sizes):
        own = Own.ALWAYS
    if not 2 <= len(shape) <= RANK or not (simple or own is not Own.NEVER):
        return False
    scores = _unscaled(edit, match.scores)
    left, right = scores.product.left, scores.product.right
    operands = [_narrowed(operand, dtype) for operand in (left, right, match.values)]
    if any(dtype_of(operand.node) != dtype for operand in operands):
        return False
    edit.graph.inserting_before(match.last)
    if own is Own.ALWAYS or not simple:
        tensors = tuple(placed(edit, operand) for operand in operands)
        query, key, value, _ = grouped(edit, tensors, {}, Mask(), "cpu")
        named, steps = kernel_steps(edit, scores, RANK)
        operation = {"steps": steps}
        replace_match(edit, match, (query, key, value, *named), Mask(), operation, scored_attention)
        return True
    mask = mask_of(edit, scores, RANK, dtype_of(match.softmax.args[0]))
    if mask is None:
        return False
    query, key, value = (placed(edit, operand) for operand in operands)
    import torch

    for factor in scores.factors:
        query = edit.call(torch.ops.aten.mul.Tensor, (query, factor))
    options: dict[str, Any] = {"scale": scores.scale}
    if mask.causal:
        options["is_causal"] = True
    query, key, value, options = grouped(edit, (query, key, value), options, mask, target.device)
    replace_match(edit, match, (query, key, value), mask, options)
    return True


def _unscaled(edit: Edit, scores: Scores) -> Scores:
    """Return the scores with constant factors of queries and keys moved into the scale.

    A factor is moved only if no other operator reads the scaled queries or keys.
    """

    def peeled(operand: Operand, scale: float) -> tuple[Operand, float]:
        node = operand.node
        if node.op != "call_function" or len(node.users) != 1 or called(node) != "mul":
            return operand, scale
        for x, other in (node.args, node.args[::-1]):
            factor = edit.number(other)
            whole = hasattr(x, "meta") and shape_of(x) == shape_of(node)
            if factor is not None and factor > 0 and whole and dtype_of(x) == dtype_of(node):
                return Operand(x, operand.order), scale * factor
        return operand, scale

    left, scale = peeled(scores.product.left, scores.scale)
    right, scale = peeled(scores.product.right, scale)
    product = replace(scores.product, left=left, right=right)
    steps = scores.steps
    if scale != scores.scale:
        steps = (("mul", scale / scores.scale), *steps)
    return replace(scores, scale=scale, product=product, steps=steps)


def _narrowed(operand: Operand, dtype: str) -> Operand:
    """Return the operand before its cast from `dtype` to float32; an operand without such a cast is
    returned unchanged."""
    source = copied(operand.node)
    exact = source is not None and dtype_of(source) == dtype and dtype_of(operand.node) == "float32"
    return Operand(source, operand.order) if exact else operand


def _by_kernel(edit: Edit, node: Any, target: Target, own: Own) -> bool:
    """Replace an attention call without a mask by one that a generated kernel computes.

    Return True if the call was replaced: if `own` demands it, or if the library's kernel would
    compute mostly empty tiles.
    """
    options = _options_of(edit, node)
    if options is None or own is Own.NEVER or argument(node, 3, "attn_mask") is not None:
        return False
    query, key, value = node.args[:3]
    dtype, (batch, heads, rows, depth) = dtype_of(query), shape_of(query)
    if dtype not in FLOATS or not has_kernel(target, dtype, depth, shape_of(value)[-1]):
        return False
    if shape_of(key)[:3] != shape_of(value)[:3] or shape_of(key)[0] != batch:
        return False
    if heads % shape_of(key)[1] or not (heads == shape_of(key)[1] or node.kwargs.get("enable_gqa")):
        return False
    few = fills_few_rows(target, dtype, batch * heads, rows, shape_of(key)[2])
    if not few and own is not Own.ALWAYS:
        return False
    steps: tuple[tuple[Any, ...], ...] = (("scale", options["scale"]),)
    steps += (("causal", -math.inf),) if options.get("is_causal") else ()
    edit.graph.inserting_before(node)
    match = match_of_call(node, query, key, value)
    replace_match(edit, match, (query, key, value), Mask(), {"steps": steps}, scored_attention)
    return True


def _options_of(edit: Edit, node: Any) -> dict[str, Any] | None:
    """Return scale and causality of an attention call; None if the node is none that is covered."""
    if called(node) != ATTENTION or node in edit.outputs:
        return None
    query, dropout = node.args[0], argument(node, 4, "dropout_p", 0.0)
    if dropout or len(shape_of(query)) != RANK:
        return None
    scale = node.kwargs.get("scale")
    options = {"scale": 1 / math.sqrt(shape_of(query)[-1]) if scale is None else scale}
    causal = argument(node, 5, "is_causal", False)
    return options | ({"is_causal": True} if causal else {})


def _without_mask(edit: Edit, node: Any) -> bool:
    """Let an attention call with a constant causal mask be causal without it, which takes half of
    the time, and one with a constant mask of all keys have none. Return True if the call was
    changed."""
    mask = None if called(node) != CALL else argument(node, 3, "attn_mask")
    if mask is None or argument(node, 5, "is_causal", False):
        return False
    value, rows, columns = (
        edit.constant(mask),
        shape_of(node.args[0])[-2],
        shape_of(node.args[1])[-2],
    )
    causal = value is not None and is_causal_mask(value, rows, columns)
    if value is None or not (causal or keeps_all(value)):
        return False
    dropout = argument(node, 4, "dropout_p", 0.0)
    node.args = (*node.args[:3], None, dropout, causal)
    node.kwargs = {k: v for k, v in node.kwargs.items() if k in NAMES}
    return True


def _with_readable_mask(edit: Edit, node: Any, target: Target) -> bool:
    """Let torch's fused kernels on a GPU read the mask of an attention call. Return True if the
    call was changed."""
    mask = None if called(node) != CALL else argument(node, 3, "attn_mask")
    if mask is None or target.device != "cuda":
        return False
    edit.graph.inserting_before(node)
    readable = with_adjacent_keys(edit, mask, shape_of(node.args[1])[-2])
    if readable is mask:
        return False
    options = (argument(node, 4, "dropout_p", 0.0), argument(node, 5, "is_causal", False))
    node.args = (*node.args[:3], readable, *options)
    node.kwargs = {k: v for k, v in node.kwargs.items() if k in NAMES}
    return True


def _without_copies(edit: Edit, node: Any, target: Target) -> bool:
    """Replace an attention call on repeated heads by one that reads the heads before the
    repetition.

    Return True if the call was replaced.
    """
    options = _options_of(edit, node)
    if options is None:
        return False
    query, key, value = node.args[:3]
    mask = argument(node, 3, "attn_mask")
    edit.graph.inserting_before(node)
    found = grouped(edit, (query, key, value), options, Mask(mask), target.device)
    if "enable_gqa" not in found[3] or node.kwargs.get("enable_gqa"):
        return False
    replace_match(edit, match_of_call(node, query, key, value), found[:3], Mask(mask), found[3])
    return True
