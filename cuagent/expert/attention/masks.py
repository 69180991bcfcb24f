"""Combine the biases and fills of attention scores into one mask for
`F.scaled_dot_product_attention`.

The library returns zeros for a query all of whose keys are masked. The reference returns NaN there
if it fills with minus infinity, and the mean of the values if its fill is finite. `Mask.empty`
marks such queries, unless the mask is a constant that leaves a key for each query.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuagent.expert.attention.scores import HUGE, Fill, Scores
from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.graph.lowering import dtype_of, shape_of


@dataclass(frozen=True)
class Mask:
    """The mask argument of an attention call, with the cases in which its result must be
    corrected."""

    tensor: Any = None
    """Boolean mask, True at keys to use, or a tensor to add to the scores; None without a mask."""
    causal: bool = False
    """True if query k attends to the keys 0 to k, and no other mask applies."""
    empty: Any = None
    """Boolean tensor, True at queries whose keys are all masked; None if every query has a key."""
    finite: bool = False
    """True if the reference's fill is finite: queries in `empty` must get the mean of the values,
    otherwise NaN."""


def mask_of(edit: Edit, scores: Scores, rank: int, dtype: str) -> Mask | None:
    """Add the nodes of a mask that is equivalent to the biases and fills of the scores; return the
    mask.

    The mask has leading dimensions of size 1 up to `rank` dimensions. Returns None if finite and
    infinite fills are mixed, a bias has another dtype, or a constant mask leaves a query without a
    key.
    """
    import torch

    finite = {math.isfinite(fill.value) for fill in scores.fills}
    if len(finite) > 1 or any(dtype_of(b) != dtype for b, _ in scores.biases):
        return None
    constant = _constant(edit, scores)
    if constant is not None and _removes_only(edit, scores):
        if bool(constant.all()):
            return Mask()
        if _is_causal(constant):
            return Mask(causal=True)
    aten = torch.ops.aten
    kept = _kept(edit, scores)
    added = None
    for bias, weight in scores.biases:
        term = bias if weight == 1 else edit.call(aten.mul.Tensor, (bias, weight))
        added = term if added is None else edit.call(aten.add.Tensor, (added, term))
    if kept is None and added is None:
        return Mask()
    empty = None
    if constant is None and kept is None and all(is_finite(bias) for bias, _ in scores.biases):
        empty = None
    elif constant is None:
        empty = _empty(edit, kept, added, rank)
    elif not bool(constant.any(-1).all()):
        return None
    tensor = kept
    if added is not None:
        lowest = float("-inf")
        tensor = added
        if kept is not None:
            tensor = edit.call(aten.where.ScalarOther, (kept, added, lowest))
    return Mask(_padded(edit, tensor, rank), False, empty, finite == {True})


def _kept(edit: Edit, scores: Scores) -> Any:
    """Add the boolean tensor that is True where no fill masks the key; None if there are no
    fills."""
    import torch

    kept = None
    for fill in scores.fills:
        term = _positive(edit, fill)
        both = torch.ops.aten.logical_and.default
        kept = term if kept is None else edit.call(both, (kept, term))
    return kept


def _positive(edit: Edit, fill: Fill) -> Any:
    import torch

    if not fill.removes:
        return fill.mask
    if called(fill.mask) in ("bitwise_not", "logical_not"):
        source = fill.mask.args[0]
        if dtype_of(source) == "bool":
            return source
    return edit.call(torch.ops.aten.logical_not.default, (fill.mask,))


def _constant(edit: Edit, scores: Scores) -> Any:
    """Return a constant boolean tensor, True at keys to use; None unless all fills and biases are
    constants.

    A key is used where a constant bias is above `HUGE`.
    """
    kept = None
    for tensor, keeps in (
        *((fill.mask, None if fill.removes else True) for fill in scores.fills),
        *((bias, False) for bias, _ in scores.biases),
    ):
        value = edit.constant(tensor)
        if value is None:
            return None
        if keeps is None:
            value = ~value
        elif not keeps:
            value = value > HUGE
        kept = value if kept is None else kept & value
    return kept


def _removes_only(edit: Edit, scores: Scores) -> bool:
    """Return True if each constant bias is 0 at the keys that it does not mask."""
    biases = [edit.constant(bias) for bias, _ in scores.biases]
    return all(bool(((bias == 0) | (bias <= HUGE)).all()) for bias in biases)


def _is_causal(kept: Any) -> bool:
    """Return True if `kept` is one square matrix that is True exactly in its lower triangle."""
    rows, columns = kept.shape[-2:] if kept.dim() > 1 else (0, 1)
    if rows != columns or kept.numel() != rows * columns:
        return False
    matrix = kept.reshape(rows, columns)
    return bool((matrix == matrix.new_ones(rows, columns).tril()).all())


def is_causal_mask(mask: Any, rows: int, columns: int) -> bool:
    """Return True if a constant mask of a library call, boolean or added, keeps exactly the keys 0
    to k of each query k."""
    if mask.dim() < 2 or tuple(mask.shape[-2:]) != (rows, columns) or rows != columns:
        return False
    kept = mask if str(mask.dtype) == "torch.bool" else mask > HUGE
    if kept is not mask and not bool(((mask == 0) | (mask <= HUGE)).all()):
        return False
    return bool((kept == kept.new_ones(rows, columns).tril()).all())


def keeps_all(mask: Any) -> bool:
    """Return True if a constant mask of a library call, boolean or added, has no effect."""
    return bool(mask.all() if str(mask.dtype) == "torch.bool" else (mask == 0).all())


def with_adjacent_keys(edit: Edit, mask: Any, keys: int) -> Any:
    """Return a mask of a library call whose elements of adjacent keys are adjacent in memory.

    torch's fused kernels on a GPU refuse other masks, such as one of the queries that is expanded
    over the keys. torch then computes products and a softmax in float32, and stores the scores.
    """
    import torch

    value, aten = mask.meta["val"], torch.ops.aten
    if keys == 1 or value.dim() < 2 or (value.shape[-1] == keys and value.stride(-1) == 1):
        return mask
    if value.shape[-1] != keys:
        mask = edit.call(aten.expand.default, (mask, [*shape_of(mask)[:-1], keys]))
    return edit.call(aten.clone.default, (mask,), {"memory_format": torch.contiguous_format})


ELEMENTWISE = {
    "where", "add", "sub", "mul", "masked_fill", "_to_copy", "clone", "alias", "logical_and",
    "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "__and__", "__or__",
    "eq", "ne", "lt", "le", "gt", "ge",
}  # fmt: skip
"""Operators that `of_one_sample` computes again from operands of one sample."""


def of_one_sample(edit: Edit, mask: Any) -> Any:
    """Return a mask of (batch, heads, queries, keys) that is equal for all samples as one of size 1
    along the batch; None for other masks.

    Such a mask is expanded, and often combined with a bias of each head behind that. The library
    then reads it once for each sample.
    """
    import torch

    shape = shape_of(mask)
    if len(shape) < 4 or shape[0] == 1:
        return mask
    if len(shape) > 4 or mask.op != "call_function":
        return None
    if called(mask) == "expand":
        source = mask.args[0]
        if len(shape_of(source)) == 4 and shape_of(source)[0] != 1:
            return None
        return edit.call(torch.ops.aten.expand.default, (source, [1, *shape[1:]]))
    if called(mask) not in ELEMENTWISE or any(hasattr(v, "meta") for v in mask.kwargs.values()):
        return None
    args = [of_one_sample(edit, a) if hasattr(a, "meta") else a for a in mask.args]
    if any(a is None and b is not None for a, b in zip(args, mask.args, strict=True)):
        return None
    return edit.call(mask.target, args, mask.kwargs)


def _empty(edit: Edit, kept: Any, added: Any, rank: int) -> Any:
    """Add a boolean tensor that is True at queries all of whose keys are masked or have a bias of
    -inf."""
    import torch

    aten = torch.ops.aten
    removed = None if kept is None else edit.call(aten.logical_not.default, (kept,))
    if added is not None:
        lowest = edit.call(aten.eq.Scalar, (added, float("-inf")))
        both = aten.logical_or.default
        removed = lowest if removed is None else edit.call(both, (removed, lowest))
    removed = _padded(edit, removed, rank)
    return edit.call(aten.all.dim, (removed, -1, True))


SAME = {
    "_to_copy", "to", "clone", "contiguous", "view", "reshape", "unsqueeze", "squeeze", "expand",
    "slice", "select", "permute", "transpose", "type_as", "alias", "detach",
}  # fmt: skip
"""Operators whose result contains only elements of their first argument, perhaps cast."""
BOUNDED = {"sigmoid", "tanh", "sin", "cos", "softmax", "_softmax"}
"""Operators whose results lie between -1 and 1, or are NaN."""


def is_finite(bias: Any) -> bool:
    """Return True if no element of `bias` is infinite for any input; elements may be NaN.

    Examples: `(1 - mask) * -10000` with an integer mask, as in BERT; `16 * sigmoid(x)`, as in Swin.
    """
    return _largest(bias) < math.inf


def _largest(value: Any) -> float:
    """Return an upper bound of the absolute values of a node's elements; infinity if none is
    known."""
    import torch

    if not hasattr(value, "meta"):
        return abs(value) if isinstance(value, int | float) else math.inf
    dtype = value.meta["val"].dtype
    if not dtype.is_floating_point:
        return 1.0 if dtype == torch.bool else 2.0 * torch.iinfo(dtype).max
    match called(value):
        case name if name in SAME:
            found = _largest(value.args[0])
        case "add" | "sub" | "rsub":
            factor = _largest(value.kwargs.get("alpha", 1))
            found = (1 + factor) * max(_largest(a) for a in value.args[:2])
        case "mul":
            found = _largest(value.args[0]) * _largest(value.args[1])
        case "where":
            found = max(_largest(a) for a in value.args[1:])
        case "masked_fill":
            found = max(_largest(value.args[0]), _largest(value.args[2]))
        case "zeros_like" | "ones_like" | "zeros" | "ones":
            found = 1.0
        case name if name in BOUNDED:
            found = 1.0
        case _:
            return math.inf
    # A result that is too large for its type would be infinite.
    return found if found < torch.finfo(dtype).max / 2 else math.inf


def _padded(edit: Edit, tensor: Any, rank: int) -> Any:
    """Return the tensor with leading dimensions of size 1 added, up to `rank` dimensions."""
    import torch

    while len(shape_of(tensor)) < rank:
        tensor = edit.call(torch.ops.aten.unsqueeze.default, (tensor, 0))
    return tensor


def kernel_steps(
    edit: Edit, scores: Scores, rank: int
) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...]]:
    """Return the arguments `tensors` and `steps` of a `scored_attention` call with these scores."""
    tensors: list[Any] = []
    steps: list[tuple[Any, ...]] = []

    def place(tensor: Any) -> int:
        tensors.append(_padded(edit, tensor, rank))
        return len(tensors) - 1

    for step in scores.steps:
        match step:
            case ("mul", int() | float() as factor):
                steps.append(("scale", float(factor)))
            case ("mul", tensor):
                steps.append(("mul", place(tensor)))
            case ("add", tensor, weight):
                fill = _causal_bias(edit, tensor)
                term = ("add", place(tensor), float(weight)) if fill is None else ("causal", fill)
                steps.append(term)
            case ("fill", fill):
                steps.append(_fill(edit, fill, place))
            case ("tanh", _):
                steps.append(("tanh",))
    return tuple(tensors), tuple(steps)


def _causal_bias(edit: Edit, bias: Any) -> float | None:
    """Return the value above the diagonal of a constant causal bias (0 on and below it); None for
    other biases."""
    tensor = edit.constant(bias)
    if tensor is None or not _is_causal(tensor > HUGE):
        return None
    return float(tensor.min()) if bool(((tensor == 0) | (tensor <= HUGE)).all()) else None


def _fill(edit: Edit, fill: Fill, place: Callable[[Any], int]) -> tuple[Any, ...]:
    constant = edit.constant(fill.mask)
    if constant is not None and _is_causal(~constant if fill.removes else constant):
        return ("causal", fill.value)
    return ("fill", place(fill.mask), fill.removes, fill.value)
