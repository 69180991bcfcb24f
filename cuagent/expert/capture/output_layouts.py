"""Give captured outputs the layouts that a real call returns.

The trace computes layouts with fake tensors, whose rules differ from those of torch's CUDA kernels
for some channels-last calls. For example, a bilinear resize of fewer than 16 channels is contiguous
in the trace, and channels-last on a GPU. The layout of an attention depends on the backend, and a
kernel that replaces it has a layout of its own. `nn.MultiheadAttention` has a fast path, also on a
CPU, that is not traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cuagent.expert.graph.orders import CORRECTED, has_layouts, is_view

if TYPE_CHECKING:
    import torch

    from cuagent.expert.capture.export import Captured

ATTENTION = "scaled_dot_product_attention"


def correct_outputs(
    captured: Captured, model: torch.nn.Module, inputs: Sequence[Any], on_gpu: bool = True
) -> None:
    """Set the strides of the captured outputs to those that `model(*inputs)` returns.

    Outputs whose layout follows from an attention `on_gpu` are marked also if the strides are those
    of the trace: a candidate's attention may have another layout.

    The call is made only if the module has an `nn.MultiheadAttention`, or the trace `on_gpu` an
    attention or permuted values. It may change `inputs`. Nothing changes if the GPU's memory does
    not suffice.
    """
    import torch
    from torch.utils import _pytree as pytree

    fast_path = any(isinstance(module, torch.nn.MultiheadAttention) for module in model.modules())
    attends = any(ATTENTION in str(fx.target) for fx in captured.nodes)
    if captured.states or not (fast_path or (on_gpu and (attends or has_layouts(captured.nodes)))):
        return
    try:
        with torch.no_grad():
            results, _ = pytree.tree_flatten(model(*inputs))
    except torch.OutOfMemoryError:
        return
    for node, result in zip(captured.outputs, results, strict=True):
        traced = getattr(node, "meta", {}).get("val")
        if not isinstance(traced, torch.Tensor) or node.op != "call_function":
            continue
        if traced.shape != result.shape:
            continue
        if traced.stride() != result.stride():
            node.meta["val"] = traced.new_empty_strided(result.shape, result.stride())
            node.meta[CORRECTED] = True
        elif on_gpu and _follows_attention(node):
            node.meta[CORRECTED] = True


def _follows_attention(output: Any) -> bool:
    """Return True if an output's layout follows from that of an attention, through views and
    elementwise operators."""
    import torch

    stack, seen = [output], {output}
    while stack:
        node = stack.pop()
        if ATTENTION in str(node.target):
            return True
        overload = isinstance(node.target, torch._ops.OpOverload)
        if not overload or not (torch.Tag.pointwise in node.target.tags or is_view(node)):
            continue
        new = [source for source in node.all_input_nodes if source not in seen]
        stack += new
        seen.update(new)
    return False
