"""Replace operators that torch defines by other operators (`hstack`, `isclose`, `kron`).

The expert has no rules for them; torch's own definition gives equal values.
"""

from __future__ import annotations

from typing import Any

NAMES = {
    "hstack", "vstack", "dstack", "column_stack", "meshgrid", "kron", "trapezoid",
    "cumulative_trapezoid", "linalg_norm", "nanmean", "isclose", "outer", "ger", "inner",
    "tile", "cartesian_prod", "dist", "fliplr", "flipud", "take_along_dim", "movedim", "moveaxis",
    "swapaxes", "swapdims", "cosine_embedding_loss", "triplet_margin_loss", "block_diag", "vander",
    "sum_to_size", "broadcast_to", "expand_as", "view_as", "reshape_as", "unsafe_chunk",
    "tensor_split", "hsplit", "vsplit", "dsplit", "ravel", "absolute", "negative", "clip",
    "arctan", "arctan2", "arcsin", "arccos", "greater", "greater_equal", "less", "less_equal",
    "not_equal", "true_divide", "divide", "multiply", "subtract", "square", "deg2rad", "rad2deg",
    "fix", "special_expit", "special_logit", "special_log_softmax", "special_softmax",
    "special_xlogy", "special_exp2", "float_power", "pairwise_distance", "linalg_diagonal",
    "adaptive_avg_pool1d", "logaddexp2", "heaviside", "copysign", "diag_embed",
}  # fmt: skip
"""Names of operators that are replaced by torch's definition, if torch has one."""


def composites(nodes: Any) -> dict[Any, Any]:
    """Return torch's definition of each operator in NAMES that some of the fx nodes call."""
    import torch

    called = {node.target for node in nodes if node.op == "call_function"}
    ours = {op for op in called if isinstance(op, torch._ops.OpOverload) and _name(op) in NAMES}
    if not ours:
        return {}
    known = torch.export.default_decompositions()
    return {op: known[op] for op in ours if op in known}


def _name(operator: Any) -> str:
    return str(operator).split(".")[1]
