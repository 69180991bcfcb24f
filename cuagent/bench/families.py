"""Name the operator family of a problem from the operators that one call runs.

The names are those of docs/research: `product`, `convolution`, `transposed convolution 3D`, ...,
with `and more` if the call also runs other computing operators. A problem with many products or
convolutions is called an `MLP` or a `convolutional network`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cuagent.bench.traced_operators import Operator
from cuagent.worker.operators import names_in

PRODUCTS = names_in(
    """
    mm addmm bmm baddbmm mv addmv dot vdot addbmm _addmm_activation
    """
)
CONVOLUTIONS = frozenset(["convolution", "_convolution", "convolution_overrideable"])
LAYERS = 4
"""Least number of products or convolutions from which a problem is called a network."""
RECURRENT = ("rnn", "lstm", "gru")
LOSSES = ("loss", "kl_div", "cross_entropy", "nll", "embedding_bag_loss")
SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
NORMS = ("norm", "softmax", "batch_norm", "layer_norm", "group_norm", "std", "var")
POOLS = ("pool",)
REDUCTIONS = names_in(
    """
    sum mean amax amin max min prod argmax argmin logsumexp any all aminmax median norm
    """
)


def family_of(operators: Sequence[Operator], scalar: bool, inputs: int, recurrent: bool) -> str:
    """Return the name of a problem's operator family.

    `operators`: operators of one call. `scalar`: True if the output is one number. `inputs`: number
    of input tensors. `recurrent`: True if the model has a recurrent module.
    """
    names = [operator.name for operator in operators]
    if recurrent or any(word in name for name in names for word in RECURRENT):
        return "recurrent network"
    products = sum(name in PRODUCTS for name in names)
    convolutions = [o for o in operators if o.name in CONVOLUTIONS]
    if _attends(names):
        return "attention" if products <= LAYERS else "attention network"
    if len(convolutions) >= LAYERS:
        return "convolutional network"
    if products >= LAYERS:
        return "MLP"
    if convolutions:
        return _and_more(_convolution(convolutions), len(operators) > len(convolutions))
    if products:
        return _and_more("product", len(operators) > products)
    return _without_matrices(names, scalar, inputs)


def _and_more(name: str, more: bool) -> str:
    return f"{name} and more" if more else name


def _attends(names: Sequence[str]) -> bool:
    if any("scaled_dot_product" in name or "attention" in name for name in names):
        return True
    batched = [n for n, name in enumerate(names) if name in ("bmm", "baddbmm")]
    soft = [n for n, name in enumerate(names) if "softmax" in name]
    return any(a < s < b for s in soft for a in batched for b in batched)


def _convolution(found: Sequence[Operator]) -> str:
    about = [dict(operator.attributes) for operator in found]
    dimensions = max(a.get("dimensions", 2) for a in about)
    transposed = any(a.get("transposed") for a in about)
    depthwise = any(a.get("depthwise") for a in about)
    kind = "transposed convolution" if transposed else "convolution"
    if depthwise and not transposed:
        kind = "depthwise convolution"
    return f"{kind} 3D" if dimensions == 3 else kind


def _without_matrices(names: Sequence[str], scalar: bool, inputs: int) -> str:
    if _any(names, SCANS):
        return "scan"
    if _any(names, LOSSES) or (scalar and inputs > 1):
        return "loss"
    if _any(names, POOLS):
        return "pooling"
    if _any(names, NORMS):
        return "norm, softmax"
    if not any(name in REDUCTIONS for name in names):
        return "elementwise"
    # A norm that is written out as single operators ends with elementwise ones.
    return "reduction" if names[-1] in REDUCTIONS else "norm, softmax"


def _any(names: Iterable[str], parts: Sequence[str]) -> bool:
    return any(part in name for name in names for part in parts)
