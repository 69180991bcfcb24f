"""Compute the attention operators that a rewritten graph calls.

`rules/attention.py` lowers them to calls of torch, and `kernel.py` may replace `scored_attention`
by a generated kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    heads_inside: bool = False,
) -> Any:
    """Return the library's attention as a contiguous tensor.

    `heads_inside`: the result is (batch, rows, heads, head size), which the next linear layer
    reads.
    """
    import torch

    result = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return (result.transpose(1, 2) if heads_inside else result).contiguous()


def scored_attention(
    query: Any,
    key: Any,
    value: Any,
    *tensors: Any,
    steps: Sequence[tuple[Any, ...]],
    heads_inside: bool = False,
) -> Any:
    """Return softmax(s) v, where s is q k^T after the operations `steps`, applied in order.

    A step is ("scale", factor), ("mul", index), ("add", index, weight), ("tanh",), ("fill", index,
    removes, value) or ("causal", value). An index selects one of `tensors`.
    """
    import torch

    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    scores = query @ key.mT
    for name, *words in steps:
        match name:
            case "scale":
                scores = scores * words[0]
            case "mul":
                scores = scores * tensors[words[0]]
            case "add":
                scores = scores + tensors[words[0]] * words[1]
            case "tanh":
                scores = torch.tanh(scores)
            case "fill":
                place, removes, fill = words
                mask = tensors[place] if removes else ~tensors[place]
                scores = scores.masked_fill(mask, fill)
            case "causal":
                seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
                scores = scores.masked_fill(~seen, words[0])
    result = scores.softmax(-1).to(value.dtype) @ value
    return (result.transpose(1, 2) if heads_inside else result).contiguous()
