"""Find the captured values that depend on parameters and constants alone, to compute them only
once.

Position ids, masks, tables of rotary angles and relative position biases are computed in each
forward, although no input changes them. A candidate computes them once, by the torch calls of the
reference, so that they are equal to the last bit; and again when a parameter that they depend on
changes. Arithmetic on weights alone is left to the rewrites, which compute it in fp64.
"""

from __future__ import annotations

from typing import Any

from cuagent.expert.capture.export import Captured
from cuagent.expert.graph.lowering import operator_name

MAX_BYTES = 64 << 20
"""Largest size in bytes of a value that is stored between calls."""
ARITHMETIC = {
    "add", "sub", "rsub", "mul", "div", "neg", "sqrt", "rsqrt", "reciprocal", "exp", "log",
    "sigmoid", "tanh", "abs", "relu", "softplus", "silu", "gelu", "maximum", "clamp", "clamp_min",
    "pow", "square", "sum", "mean", "amax", "amin", "norm", "linalg_vector_norm", "var", "softmax",
}  # fmt: skip
"""Operators on weights that rewrites may fold into a layer's weights."""
COPIES = {
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "permute",
    "transpose", "t", "expand", "select", "slice", "getitem", "clone", "contiguous", "alias",
    "detach", "_to_copy", "to", "lift_fresh_copy", "type_as", "cat", "stack", "split", "chunk",
    "unbind", "split_with_sizes", "diag", "diag_embed",
}  # fmt: skip
"""Operators that copy, view or rearrange elements without arithmetic."""
UNDEFINED = ("empty", "empty_like", "new_empty", "empty_strided")


def constant_values(captured: Captured) -> frozenset[str]:
    """Return the names of the fx nodes that are computed once.

    They depend on parameters and constants alone. Included are results of operators outside of
    `ARITHMETIC` and `COPIES`, everything computed from these, and the views of weights that they
    read. Excluded are outputs of forward (a caller may change them in place) and expansions (they
    would take memory).
    """
    fixed = {*captured.parameters, *captured.constants}
    results = {value.name for value in captured.outputs if hasattr(value, "name")}
    found: set[str] = set()
    derived: set[str] = set()
    for fx in captured.nodes:
        if fx.op != "call_function" or not is_repeatable(fx):
            continue
        if not all(a.name in fixed for a in fx.all_input_nodes):
            continue
        fixed.add(fx.name)
        starts = operator_name(fx) not in ARITHMETIC | COPIES
        if starts or any(a.name in derived for a in fx.all_input_nodes):
            derived.add(fx.name)
            if operator_name(fx) != "expand":
                found |= {fx.name, *_views_before(fx, fixed)}
    return frozenset(found - results)


def _views_before(fx: Any, fixed: set[str]) -> set[str]:
    """Return the names in `fixed` of views and copies of weights from which node `fx` is
    computed.
    """
    names: set[str] = set()
    for arg in fx.all_input_nodes:
        if arg.op == "call_function" and arg.name in fixed and operator_name(arg) in COPIES:
            names |= {arg.name, *_views_before(arg, fixed)}
    return names


def is_repeatable(fx: Any) -> bool:
    """Return True if each call of node `fx` gives the same single tensor of at most `MAX_BYTES`."""
    import torch

    value = fx.meta.get("val")
    if not isinstance(fx.target, torch._ops.OpOverload) or not isinstance(value, torch.Tensor):
        return False
    random = torch.Tag.nondeterministic_seeded in fx.target.tags
    size = value.numel() * value.element_size()
    undefined = operator_name(fx) in UNDEFINED
    return not random and not undefined and not fx.target._schema.is_mutable and size <= MAX_BYTES
