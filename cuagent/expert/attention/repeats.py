"""Read the heads of keys and values before they are repeated, where the library supports it."""

from __future__ import annotations

from typing import Any

from cuagent.expert.attention.masks import Mask
from cuagent.expert.attention.scores import copied
from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.graph.lowering import argument, dtype_of, shape_of

RANK = 4
"""Number of dimensions of the operands of fused attention: batch, heads, rows, head size."""


def grouped(
    edit: Edit, operands: tuple[Any, ...], options: dict[str, Any], mask: Mask, device: str
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return (query, key, value, options) of a call in which the library repeats the heads of keys
    and values.

    Key and value are those before the repetition. All are returned unchanged if nothing is repeated
    or the library does not support it: on CUDA only the backend without masks does, for half types.
    """
    query, key, value = operands
    sources = [_unrepeated(key), _unrepeated(value)]
    able = device == "cpu" or (mask.tensor is None and dtype_of(query) != "float32")
    if None in sources or not able or len({shape_of(s)[1] for s in sources}) != 1:
        return query, key, value, options
    return query, sources[0], sources[1], {**options, "enable_gqa": True}


def _unrepeated(node: Any) -> Any:
    """Return the tensor before `repeat_interleave` or `expand` repeats its heads; None if its heads
    are not repeated."""
    if node.op != "call_function":
        return None
    name = called(node)
    if name == "repeat_interleave" and len(shape_of(node)) == RANK:
        source, count, dim = node.args[0], node.args[1], argument(node, 2, "dim")
        regular = isinstance(count, int) and dim is not None and dim % RANK == 1
        return source if regular else None
    if name not in ("view", "reshape", "_unsafe_view"):
        return None
    node, wide = node.args[0], shape_of(node)
    while copied(node) is not None:
        node = copied(node)
    if node.op != "call_function" or called(node) != "expand":
        return None
    single, many = node.args[0], shape_of(node)
    if len(many) != RANK + 1 or (many[0], many[1] * many[2], *many[3:]) != wide:
        return None
    if shape_of(single) != (*many[:2], 1, *many[3:]) or called(single) != "unsqueeze":
        return None
    source = single.args[0]
    return source if shape_of(source) == (*many[:2], *many[3:]) else None
