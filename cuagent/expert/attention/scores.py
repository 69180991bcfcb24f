"""Recognize the scores of an attention: a product of queries and keys that is scaled, shifted and
masked.

The operators between the product and the softmax are followed back from the softmax. Each
intermediate tensor must have one reader.
Not covered: elementwise operators other than sums, products, fills and tanh; views other than of
windows (`_windowed`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cuagent.expert.attention.products import BatchedProduct, batched_product
from cuagent.expert.capture.editing import Edit, called
from cuagent.expert.graph.graph import FLOATS
from cuagent.expert.graph.lowering import argument, dtype_of, shape_of

COPIES = {"clone", "alias", "detach", "contiguous", "_to_copy", "to", "lift_fresh_copy", "type_as"}
RESHAPES = {"view", "reshape", "_unsafe_view"}
HUGE = -1e9
"""Bound on a finite fill: a fill of at most this value removes a key from the softmax, as minus
infinity does.

This holds for rows with a score more than 104 above the fill: exp(-104) is 0 in float32.
"""


@dataclass(frozen=True)
class Fill:
    """A mask that overwrites the scores of some keys by `value`."""

    mask: Any
    removes: bool
    """True if the mask is True at the overwritten scores, False if it is True at the others."""
    value: float


Step = tuple[str, Any] | tuple[str, Any, Any]
"""One operation on the scores: ("mul", number or tensor), ("add", tensor, weight), ("fill", a
`Fill`) or ("tanh", None)."""


@dataclass(frozen=True)
class Scores:
    """Attention scores of the form scale * factors * (queries keys^T) + biases, with fills.

    If `simple` is False the scores have another form, and only `steps`, the list of all operations
    after the product, describes them.
    """

    product: BatchedProduct
    scale: float = 1.0
    factors: tuple[Any, ...] = ()
    """Tensors that the scores are multiplied by; each is constant over queries and keys."""
    biases: tuple[tuple[Any, float], ...] = ()
    """Tensors added to the scores, each as (tensor, factor)."""
    fills: tuple[Fill, ...] = ()
    steps: tuple[Step, ...] = ()
    simple: bool = True
    """True if `scaled_dot_product_attention` can compute these scores."""

    def then(self, *step: Any, simple: bool = True) -> Scores:
        """Return the scores with one more operation appended to `steps`."""
        return replace(self, steps=(*self.steps, step), simple=self.simple and simple)

    def scaled(self, factor: float) -> Scores:
        """Return the scores multiplied by a number."""
        if not factor > 0:
            return self.then("mul", factor, simple=False)
        biases = tuple((node, weight * factor) for node, weight in self.biases)
        fills = tuple(replace(fill, value=fill.value * factor) for fill in self.fills)
        scaled = replace(self, scale=self.scale * factor, biases=biases, fills=fills)
        return scaled.then("mul", factor)

    def shifted(self, bias: Any, weight: float = 1.0) -> Scores:
        """Return the scores with `weight` times the tensor `bias` added."""
        shifted = replace(self, biases=(*self.biases, (bias, weight)))
        return shifted.then("add", bias, weight)


def copied(node: Any) -> Any:
    """Return the tensor that a node copies, perhaps to another floating-point dtype; None if the
    node does not copy."""
    if node.op != "call_function" or called(node) not in COPIES:
        return None
    source = node.args[0]
    return source if {dtype_of(node), dtype_of(source)} <= FLOATS else None


def read_scores(edit: Edit, node: Any) -> Scores | None:
    """Return the scores that `node` computes; None if they have another form or `node` has several
    readers."""
    if not hasattr(node, "meta") or node.op != "call_function" or len(node.users) != 1:
        return None
    product = batched_product(node)
    if product is not None:
        rank = len(product.order)
        if product.order != tuple(range(rank)):
            return None
        found = Scores(replace(product, bias=None, scale=1.0))
        found = found.scaled(product.scale) if product.scale != 1 else found
        return found if product.bias is None else found.shifted(product.bias)
    if (source := copied(node)) is not None:
        return read_scores(edit, source)
    match called(node):
        case "mul":
            return _multiplied(edit, node)
        case "div":
            inner, by = read_scores(edit, node.args[0]), edit.number(node.args[1])
            exact = node.kwargs.get("rounding_mode") is None
            return inner.scaled(1 / by) if inner is not None and by and exact else None
        case "add":
            return _added(edit, node)
        case "masked_fill":
            inner, value = read_scores(edit, node.args[0]), edit.number(node.args[2])
            return _filled(inner, node.args[1], True, value, shape_of(node))
        case "where":
            return _chosen(edit, node)
        case name if name in RESHAPES:
            return _windowed(edit, node)
        case "tanh":
            inner = read_scores(edit, node.args[0])
            return None if inner is None else inner.then("tanh", None, simple=False)
    return None


def _multiplied(edit: Edit, node: Any) -> Scores | None:
    for x, other in (node.args, node.args[::-1]):
        inner = read_scores(edit, x)
        factor = edit.number(other)
        if inner is None:
            continue
        if factor is not None:
            return inner.scaled(factor)
        # A factor that is constant over rows and columns can multiply the queries instead.
        rank = len(shape_of(node))
        shape = (1,) * (rank - len(shape_of(other))) + shape_of(other)
        if shape_of(x) != shape_of(node) or dtype_of(other) not in FLOATS:
            continue
        plain = not inner.biases and not inner.fills and shape[-2:] == (1, 1)
        plain = plain and dtype_of(other) == dtype_of(inner.product.left.node)
        with_factor = replace(inner, factors=(*inner.factors, other))
        return with_factor.then("mul", other, simple=plain)
    return None


def _added(edit: Edit, node: Any) -> Scores | None:
    if argument(node, 2, "alpha", 1) != 1 or not all(hasattr(a, "meta") for a in node.args[:2]):
        return None
    for x, other in (node.args[:2], node.args[1::-1]):
        inner = read_scores(edit, x)
        if inner is not None and shape_of(x) == shape_of(node) and dtype_of(other) in FLOATS:
            return inner.shifted(other)
    return None


def _windowed(edit: Edit, node: Any) -> Scores | None:
    """Return scores to which tensors are added while their batch is split into (images, windows),
    as in Swin transformers."""
    split: Any = node.args[0]
    biases: list[Any] = []
    while (found := _sum_in_windows(split)) is not None:
        split, bias = found
        biases.insert(0, bias)
    if not biases or called(split) not in RESHAPES or len(split.users) != 1:
        return None
    scores, (images, windows, *rest) = split.args[0], shape_of(split)
    if not shape_of(scores) == shape_of(node) == (images * windows, *rest):
        return None
    inner = read_scores(edit, scores)
    if inner is None:
        return None
    edit.graph.inserting_before(node)
    for bias in biases:
        inner = inner.shifted(_of_windows(edit, bias, images, windows, len(rest)))
    return inner


def _sum_in_windows(node: Any) -> tuple[Any, Any] | None:
    """Return (scores, tensor) of a sum that has one reader; None for other nodes."""
    if called(node) != "add" or len(node.users) != 1 or argument(node, 2, "alpha", 1) != 1:
        return None
    for x, other in (node.args[:2], node.args[1::-1]):
        if not hasattr(x, "meta") or not hasattr(other, "meta") or dtype_of(other) not in FLOATS:
            continue
        if called(x) in {*RESHAPES, "add"} and shape_of(x) == shape_of(node):
            return x, other
    return None


def _of_windows(edit: Edit, bias: Any, images: int, windows: int, rank: int) -> Any:
    """Add the views that join the first two of 2 + `rank` dimensions of a tensor, which may
    broadcast to (images, windows); return the result."""
    import torch

    aten = torch.ops.aten
    shape = (1,) * (2 + rank - len(shape_of(bias))) + shape_of(bias)
    if shape[:2] == (1, 1):
        return edit.call(aten.reshape.default, (bias, [1, *shape[2:]]))
    wide = edit.call(aten.expand.default, (bias, [images, windows, *shape[2:]]))
    return edit.call(aten.reshape.default, (wide, [images * windows, *shape[2:]]))


def _chosen(edit: Edit, node: Any) -> Scores | None:
    if len(node.args) != 3:
        return None
    condition, kept, other = node.args
    for x, fill, removes in ((kept, other, False), (other, kept, True)):
        inner = read_scores(edit, x) if hasattr(x, "meta") else None
        value = _uniform(edit, fill)
        if inner is not None and value is not None:
            return _filled(inner, condition, removes, value, shape_of(node))
    return None


def _uniform(edit: Edit, fill: Any) -> float | None:
    """Return the value of a number, or of a constant tensor whose elements are all equal; None for
    other tensors."""
    tensor = edit.constant(fill) if hasattr(fill, "meta") else None
    if tensor is not None and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
        return float(tensor.flatten()[0])
    return edit.number(fill)


def _filled(
    inner: Scores | None, mask: Any, removes: bool, value: float | None, shape: tuple[int, ...]
) -> Scores | None:
    if inner is None or value is None or not hasattr(mask, "meta") or dtype_of(mask) != "bool":
        return None
    if len(shape_of(mask)) > len(shape):
        return None
    fill = Fill(mask, removes, value)
    filled = replace(inner, fills=(*inner.fills, fill))
    return filled.then("fill", fill, simple=value <= HUGE)
