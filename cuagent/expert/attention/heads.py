"""Let calls of the library's attention return their result with the heads inside of the rows, where
the next operators join the heads.

Attentions of images join the heads to channels, and have the rows, which are places, innermost. In
channels-last layout this is the same order of memory.

The memory order of a result depends on the backend that torch chooses on a GPU: it is (batch, rows,
heads, head size), or the order of the queries. The trace may say otherwise. The call is therefore
written together with the exchange of rows and heads, and copies only a result in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuagent.expert.attention.masks import Mask, of_one_sample
from cuagent.expert.attention.operators import attention
from cuagent.expert.attention.products import BatchedProduct, Operand
from cuagent.expert.attention.repeats import RANK
from cuagent.expert.attention.replacement import Match, replace_match, transposes, turns_heads
from cuagent.expert.attention.scores import Scores
from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.capture.export import Captured
from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES
from cuagent.expert.graph.lowering import argument, dtype_of, shape_of

CALL = "scaled_dot_product_attention"
NAMES = ("scale", "enable_gqa")
"""Keyword arguments of the call that the expert's operator has too."""


def match_of_call(node: Any, query: Any, key: Any, value: Any) -> Match:
    """Return the match of an attention call with these operands."""
    straight = tuple(range(RANK))
    product = BatchedProduct(Operand(query, straight), Operand(key, straight), straight)
    return Match(node, node, Scores(product), Operand(value, straight), straight)


def with_heads_inside(captured: Captured) -> Captured:
    """Return the graph with such calls replaced; unchanged if there are none."""
    if not any(called(node) == CALL for node in captured.nodes):
        return captured
    edit, done = Edit(captured), False
    for node in edit.nodes:
        if called(node) != CALL or not _is_plain(node):
            continue
        turned = turns_heads(edit, node)
        if not turned and not transposes(edit, node, RANK):
            continue
        query, key, value = node.args[:3]
        edit.graph.inserting_before(node)
        mask = _small(edit, argument(node, 3, "attn_mask"))
        options = {k: v for k, v in node.kwargs.items() if k in NAMES and v is not None}
        if argument(node, 5, "is_causal", False):
            options["is_causal"] = True
        if turned:
            tensors = [query, key, value, *([] if mask is None else [mask])]
            _write_turned(edit, tensors, options, turned)
            done = True
            continue
        match = match_of_call(node, query, key, value)
        replace_match(edit, match, (query, key, value), Mask(mask), options)
        done = True
    return edit.result() if done else captured


def _write_turned(
    edit: Edit, tensors: Sequence[Any], options: dict[str, Any], readers: Sequence[Any]
) -> None:
    """Add a call with the heads inside of the rows, and let the readers of `readers`, which have
    the rows innermost, read a view of its result."""
    import torch

    result = edit.call(attention, tensors, {**options, "heads_inside": True})
    view = edit.call(torch.ops.aten.permute.default, (result, [0, 2, 3, 1]))
    for reader in readers:
        edit.replace(reader, view)


def _small(edit: Edit, mask: Any) -> Any:
    """Return a mask without equal samples."""
    single = None if mask is None else of_one_sample(edit, mask)
    return mask if single is None else single


def _is_plain(node: Any) -> bool:
    """Return True for a call without dropout on tensors of four dimensions that the expert's
    operator can read."""
    sources = node.all_input_nodes
    loadable = all(dtype_of(n) in ITEM_BYTES and 0 not in shape_of(n) for n in sources)
    whole = len(shape_of(node)) == RANK and len(node.args) >= 3
    half = dtype_of(node) in FLOATS and not argument(node, 4, "dropout_p", 0.0)
    return whole and half and loadable
