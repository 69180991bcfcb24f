"""Record the backward pass of a kernel that ran in an eager call.

Travels with an exported or applied kernel, next to `replacement.py`. Compiled graphs use the
operator of `boundary.py` instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .boundary import Boundary, Run


class Recomputed(torch.autograd.Function):
    """Autograd function of a kernel for eager calls; its backward is the kernel's own if that was
    verified, else the original's."""

    @staticmethod
    def forward(
        ctx: Any,
        boundary: Boundary,
        run: Run,
        backward: Run | None,
        args: tuple[Any, ...],
        count: int,
        *tensors: Tensor,
    ) -> Any:
        ctx.boundary, ctx.inputs, ctx.own = boundary, count, backward
        ctx.state = tensors[count:] if backward is not None else ()
        ctx.needed = ctx.needs_input_grad[5:]
        ctx.save_for_backward(*tensors)
        return tuple(boundary.outputs.normalised(run(args), tensors[:count], tensors[count:]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        boundary, saved = ctx.boundary, ctx.saved_tensors
        found = None
        if boundary.computes(ctx.needed):
            found = boundary.own_gradients(ctx.own, saved, ctx.inputs, gradients, ctx.state)
        if found is None:
            found = boundary.original.gradients(saved, ctx.inputs, ctx.needed, gradients)
        else:
            found = [g if need else None for g, need in zip(found, ctx.needed, strict=True)]
        return None, None, None, None, None, *found
