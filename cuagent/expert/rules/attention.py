"""Lower an attention that a rewrite found to a call of torch with a contiguous result."""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.graph.lowering import Lowering, dtype_of, operand, rule, shape_of

NAMES = ("is_causal", "scale", "enable_gqa")


@rule("attention")
def attention(low: Lowering, fx: Any) -> str | None:
    args = tuple(str(operand(low, arg)) for arg in fx.args)
    words = [f"{{{k}}}" for k in range(len(args))]
    if len(words) > 3:
        words[3] = f"attn_mask={words[3]}"
    words += [f"{name}={fx.kwargs[name]!r}" for name in NAMES if name in fx.kwargs]
    call = f"F.scaled_dot_product_attention({', '.join(words)})"
    call += ".transpose(1, 2)" if fx.kwargs.get("heads_inside") else ""
    name = low.unique_name("")
    return low.add(
        Node(
            name, Kind.LIBRARY, f"{call}.contiguous()", args, shape_of(fx), dtype_of(fx),
            origin=low.origin,
        )
    )  # fmt: skip
