"""Lower the operators of `attention/operators.py` to library calls with a contiguous result."""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.attention.kernel import Scored
from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.graph.lowering import Lowering, dtype_of, operand, rule, shape_of
from cuagent.expert.rules.queries import with_heads_inside

NAMES = ("is_causal", "scale", "enable_gqa")


@rule("attention")
def attention(low: Lowering, fx: Any) -> str | None:
    args = tuple(str(operand(low, arg)) for arg in fx.args)
    if fx.kwargs.get("heads_inside"):
        args = (with_heads_inside(low, fx.args[0]) or args[0], *args[1:])
    words = [f"{{{k}}}" for k in range(len(args))]
    if len(words) > 3:
        words[3] = f"attn_mask={words[3]}"
    words += [f"{name}={fx.kwargs[name]!r}" for name in NAMES if name in fx.kwargs]
    call = f"F.scaled_dot_product_attention({', '.join(words)})"
    return _call(low, fx, call, args, None)


@rule("scored_attention")
def scored_attention(low: Lowering, fx: Any) -> str | None:
    """Lower `scored_attention` to calls of torch, which `attention.kernel` may replace by a
    generated kernel."""
    args = tuple(str(operand(low, arg)) for arg in fx.args)
    groups = shape_of(fx.args[0])[1] // shape_of(fx.args[1])[1]
    key, value = "{1}", "{2}"
    if groups > 1:
        key, value = (f"{word}.repeat_interleave({groups}, 1)" for word in (key, value))
    text = f"torch.matmul({{0}}, {key}.mT)"
    rows, columns = shape_of(fx.args[0])[2], shape_of(fx.args[1])[2]
    for name, *words in fx.kwargs["steps"]:
        match name:
            case "scale":
                text = f"({text} * {words[0]!r})"
            case "mul":
                text = f"({text} * {{{words[0] + 3}}})"
            case "add":
                text = f"({text} + {{{words[0] + 3}}} * {words[1]!r})"
            case "tanh":
                text = f"torch.tanh({text})"
            case "fill":
                mask = f"{{{words[0] + 3}}}"
                mask = mask if words[1] else f"~{mask}"
                text = f"{text}.masked_fill({mask}, float('{words[2]!r}'))"
            case "causal":
                later = f"{{0}}.new_ones(({rows}, {columns}), dtype=torch.bool).triu(1)"
                text = f"{text}.masked_fill({later}, float('{words[0]!r}'))"
    weights = f"torch.softmax({text}, -1).to(torch.{dtype_of(fx)})"
    spec = Scored(tuple(map(tuple, fx.kwargs["steps"])), bool(fx.kwargs["heads_inside"]))
    if call := _fused(fx, key, value):
        return _call(low, fx, call, args, spec)
    return _call(low, fx, f"torch.matmul({weights}, {value})", args, spec)


def _fused(fx: Any, key: str, value: str) -> str:
    """Return torch's fused call for scores that are only scaled, and masked causally; else ""."""
    steps = [tuple(step) for step in fx.kwargs["steps"]]
    same = shape_of(fx.args[0])[-1] == shape_of(fx.args[2])[-1]
    causal = steps[1:] == [("causal", -math.inf)]
    if not steps or steps[0][0] != "scale" or not (causal or len(steps) == 1) or not same:
        return ""
    words = f"is_causal={causal}, scale={steps[0][1]!r}"
    return f"F.scaled_dot_product_attention({{0}}, {key}, {value}, {words})"


def _call(low: Lowering, fx: Any, call: str, args: tuple[str, ...], spec: Scored | None) -> str:
    call += ".transpose(1, 2)" if fx.kwargs.get("heads_inside") else ""
    name = low.unique_name("")
    return low.add(
        Node(
            name, Kind.LIBRARY, f"{call}.contiguous()", args, shape_of(fx), dtype_of(fx),
            origin=low.origin, spec=spec,
        )
    )  # fmt: skip
