"""Read the form of slices and einsums from captured torch.fx nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from cuagent.expert.capture.editing import called, is_item
from cuagent.expert.graph.lowering import argument, shape_of


class NoLoop(Exception):
    """Raised if a loop's body has an operator that a loop kernel cannot compute."""


def is_pointwise(node: Any) -> bool:
    """Return True for an elementwise operator without random numbers."""
    import torch

    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    return (
        torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags
    )


def equation(text: str) -> tuple[list[str], str]:
    """Return the letters of each operand and those of the result in an einsum's equation.

    For "ij,jk->ik" these are ["ij", "jk"] and "ik". Raises NoLoop for ellipses and other forms.
    """
    left, arrow, result = text.replace(" ", "").partition("->")
    operands = left.split(",")
    words = [*operands, result]
    if not arrow or any("." in w or len(set(w)) < len(w) for w in words):
        raise NoLoop(f"einsum {text}")
    if not set(result) <= set("".join(operands)):
        raise NoLoop(f"einsum {text}")
    return operands, result


def outer_product(node: Any) -> tuple[list[str], str] | None:
    """Return `equation` of an einsum that sums over no letter; None for any other."""
    try:
        operands, result = equation(node.args[0])
    except NoLoop:
        return None
    return (operands, result) if set("".join(operands)) == set(result) else None


def is_matrix(node: Any) -> bool:
    return hasattr(node, "meta") and len(shape_of(node)) == 2


def slices(nodes: Sequence[Any]) -> tuple[Any, int, int, int, bool]:
    """Return the tensor of which `nodes` are slices, one for each step of a loop.

    With it: the sliced dimension, the first index, the increment, and if slices keep the dimension.
    Raises NoLoop for other nodes.
    """
    if all(is_item(n) and called(n.args[0]) in ("unbind", "split", "chunk") for n in nodes):
        sources = {n.args[0] for n in nodes}
        (source, *others) = sources
        base, name = source.args[0], called(source)
        dim = argument(source, 1 if name == "unbind" else 2, "dim", 0) % len(shape_of(base))
        whole = len(source.meta["val"]) == shape_of(base)[dim]
        if not others and whole:
            return (base, dim, *progression([n.args[1] for n in nodes]), name != "unbind")
    if all(called(n) == "select" for n in nodes):
        (base, dim), *others = {(n.args[0], n.args[1]) for n in nodes}
        if not others:
            dim %= len(shape_of(base))
            indices = [n.args[2] % shape_of(base)[dim] for n in nodes]
            return (base, dim, *progression(indices), False)
    raise NoLoop("another tensor in each step")


def progression(indices: Sequence[int]) -> tuple[int, int]:
    """Return the first of `indices`, and their increment. Raises NoLoop if it is not constant."""
    step = indices[1] - indices[0]
    if any(b - a != step for a, b in pairwise(indices)):
        raise NoLoop("steps in another order")
    return indices[0], step


def filling(node: Any) -> float | None:
    """Return the number that all elements of a new tensor have; None for other nodes."""
    match called(node):
        case "zeros" | "new_zeros" | "zeros_like":
            return 0.0
        case "ones" | "new_ones" | "ones_like":
            return 1.0
        case "full" | "new_full" | "full_like":
            value = argument(node, 2 if called(node) == "new_full" else 1, "fill_value")
            return float(value) if isinstance(value, int | float) else None
    return None
