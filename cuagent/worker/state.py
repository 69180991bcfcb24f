"""Compare a model's state dict with the weights that were loaded into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def changed_name(model: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    """Return the name of an entry of the model's state dict that differs from `state`; None if none
    does."""
    own = model.state_dict()
    return next((name for name, loaded in state.items() if not _equal(own.get(name), loaded)), None)


def _equal(tensor: Tensor | None, loaded: Tensor) -> bool:
    """Return True if two tensors have equal bits; None is equal to no tensor.

    On the CPU numpy compares, because the rule kernels-only refuses torch's operators.
    """
    import numpy
    import torch

    if tensor is None or tensor.shape != loaded.shape or tensor.dtype != loaded.dtype:
        return False
    one, other = (x.contiguous().reshape(-1).view(torch.uint8) for x in (tensor, loaded))
    if one.is_cuda:
        return torch.equal(one, other)
    left, right = one.numpy(), other.numpy()
    words = len(left) // 8 * 8
    return numpy.array_equal(left[words:], right[words:]) and numpy.array_equal(
        left[:words].view(numpy.int64), right[:words].view(numpy.int64)
    )


def mismatch(model: nn.Module, state: Mapping[str, Tensor], error: Exception) -> str:
    """Return one line that says why the candidate cannot load the reference's weights, with the
    names of its state dict."""
    own = model.state_dict().keys()
    missing, extra = sorted(state.keys() - own), sorted(own - state.keys())
    if not (missing or extra):
        return " ".join(str(error).split())
    parts = [f"lacks {', '.join(missing)}"] if missing else []
    parts += [f"has the extra names {', '.join(extra)}"] if extra else []
    return (
        f"ModelNew {' and '.join(parts)}; "
        "its state_dict must have the same names as the reference's"
    )
