"""Replace a match in a captured graph by a call of an attention operator.

The call reads queries, keys and values as (batch, heads, rows, head size). Where the next operators
exchange rows and heads again, the call writes its result in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuagent.expert.attention.masks import Mask
from cuagent.expert.attention.operators import attention
from cuagent.expert.attention.products import Operand
from cuagent.expert.attention.repeats import RANK
from cuagent.expert.attention.scores import Scores
from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.graph.lowering import shape_of

FIXED_LAYOUT = {"clone", "contiguous", "reshape", "linear", "matmul", "mm"}
"""Operators whose result has a memory layout that does not depend on the layout of the argument."""
VIEWS = {"view", "_unsafe_view"}


@dataclass(frozen=True)
class Match:
    """An attention that was found in a captured graph."""

    softmax: Any
    last: Any
    """The fx node that multiplies the attention weights by the values."""
    scores: Scores
    values: Operand
    """The attention's values, as an operand (batch, keys, head size)."""
    order: tuple[int, ...]
    """Index in (*batch, rows, head size) of each dimension of the result."""


def replace_match(
    edit: Edit,
    match: Match,
    operands: tuple[Any, ...],
    mask: Mask,
    options: dict[str, Any],
    function: Callable[..., Any] = attention,
) -> None:
    """Replace a match by a call of `function` on `operands`, which are (batch, heads, rows, head
    size).

    Rows that the mask leaves empty get the values that the module gives them.
    """
    import torch

    aten = torch.ops.aten
    rank = len(match.order)
    swapped = match.order == (0, 2, 1, 3) and _layout_is_free(edit, match.last)
    readers = [] if swapped or rank < RANK - 1 else transposes(edit, match.last, rank)
    inside = swapped or bool(readers)
    tensors = operands if mask.tensor is None else (*operands, mask.tensor)
    result = edit.call(function, tensors, {**options, "heads_inside": inside})
    if mask.empty is not None:
        empty = edit.call(aten.transpose.int, (mask.empty, 1, 2)) if inside else mask.empty
        fill = aten.masked_fill.Scalar
        if mask.finite:
            mean = edit.call(aten.mean.dim, (operands[2], [2], True))
            if shape_of(mean)[1] != shape_of(operands[0])[1]:
                count = shape_of(operands[0])[1] // shape_of(mean)[1]
                mean = edit.call(aten.repeat_interleave.self_int, (mean, count, 1))
            mean = edit.call(aten.transpose.int, (mean, 1, 2)) if inside else mean
            result = edit.call(aten.where.self, (empty, mean, result))
        else:
            result = edit.call(fill, (result, empty, float("nan")))
    for _ in range(RANK - rank):
        result = edit.call(aten.squeeze.dim, (result, 0))
    for reader in readers:
        edit.replace(reader, result)
    if readers:
        return
    if not swapped and match.order != tuple(range(rank)):
        result = edit.call(aten.permute.default, (result, list(match.order)))
    edit.replace(match.last, result)


def transposes(edit: Edit, node: Any, rank: int) -> list[Any]:
    """Return the readers of `node` if each of them exchanges rows and heads; otherwise an empty
    list.

    In a node of three dimensions the first one stands for samples and heads. The list is also empty
    if forward returns `node` or a reader, or if the memory layout of a reader has an effect on the
    results.
    """
    readers = list(node.users)
    heads, rows = rank - 3, rank - 2
    order = [*range(heads), rows, heads, rank - 1]
    swaps = all(
        (called(r) == "transpose" and {d % rank for d in r.args[1:3]} == {heads, rows})
        or (called(r) == "permute" and [d % rank for d in r.args[1]] == order)
        for r in readers
    )
    settled = swaps and all(_layout_is_free(edit, reader) for reader in readers)
    return readers if settled and node not in edit.outputs else []


def turns_heads(edit: Edit, node: Any) -> list[Any]:
    """Return the readers of an attention if each of them exchanges its rows with the elements of
    the heads, as attentions of images do; else an empty list, also where `transposes` does."""
    readers, rank = list(node.users), len(node.meta["val"].shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    turns = all(
        (called(r) == "transpose" and {d % rank for d in r.args[1:3]} == {rank - 2, rank - 1})
        or (called(r) == "permute" and [d % rank for d in r.args[1]] == order)
        for r in readers
    )
    settled = turns and all(_layout_is_free(edit, reader) for reader in readers)
    return readers if settled and node not in edit.outputs else []


def _layout_is_free(edit: Edit, node: Any) -> bool:
    """Return True if the memory layout of a node's tensor has no effect on the layout of forward's
    results.

    A view of a contiguous tensor is contiguous; another view's layout may follow from the node's.
    """
    readers = [r for r in node.users if called(r) not in VIEWS or not _is_contiguous(r)]
    names = {called(reader) for reader in readers}
    formats = [r.kwargs.get("memory_format") for r in node.users if called(r) == "clone"]
    copied_to = all(str(word) == "torch.contiguous_format" for word in formats)
    return node not in edit.outputs and names <= FIXED_LAYOUT and copied_to


def _is_contiguous(node: Any) -> bool:
    return bool(node.meta["val"].is_contiguous())


def placed(edit: Edit, operand: Operand) -> Any:
    """Add the views that bring an operand into the order (batch, heads, rows, head size); return
    the result."""
    import torch

    aten = torch.ops.aten
    node, order = operand.node, operand.order
    rank = len(order)
    moved = [k for k, d in enumerate(order) if k != d]
    transposed = called(node) == "transpose" and len(moved) == 2
    if transposed and {d % rank for d in node.args[1:3]} == set(moved):
        node, moved = node.args[0], []
    if len(moved) == 2:
        node = edit.call(aten.transpose.int, (node, *moved))
    elif moved:
        node = edit.call(aten.permute.default, (node, list(order)))
    for _ in range(RANK - rank):
        node = edit.call(aten.unsqueeze.default, (node, 0))
    return node
