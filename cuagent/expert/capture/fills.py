"""Create filled tensors without the tensor whose dtype and device they have.

`x.new_zeros(size)` depends on no element of `x`. As `torch.full(size, 0)` it is a constant, and so
is a mask that is built from it: the masks of shifted windows of Swin networks need 40 calls.
"""

from __future__ import annotations

from cuagent.expert.capture.editing import Edit, called, calls_any
from cuagent.expert.capture.export import Captured

VALUES = {"new_zeros": 0, "new_ones": 1, "new_full": None}
"""Value with which each operator fills its result; None if it is the third argument."""


def with_constant_fills(captured: Captured) -> Captured:
    """Return the graph with calls of `zeros`, `ones` and `full` for the methods of a tensor;
    unchanged without such methods."""
    import torch

    if not calls_any(captured, VALUES):
        return captured
    edit, aten = Edit(captured), torch.ops.aten
    for node in edit.nodes:
        if called(node) not in VALUES:
            continue
        value, result = VALUES[called(node)], node.meta["val"]
        size = list(map(int, result.shape))
        options = {"dtype": result.dtype, "device": result.device, "pin_memory": False}
        with edit.graph.inserting_before(node):
            if value is None:
                new = edit.graph.call_function(aten.full.default, (size, node.args[2]), options)
            else:
                function = aten.ones.default if value else aten.zeros.default
                new = edit.graph.call_function(function, (size,), options)
        new.meta.update(node.meta)
        edit.replace(node, new)
    return edit.result()
