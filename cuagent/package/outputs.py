"""Give a kernel's outputs the form of the original's: structure, shapes, strides, own memory.

Travels with an exported or applied kernel, next to `boundary.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .state import pointers


class Outputs:
    """The outputs of the original for a verified call.

    `forms` has (shape, stride, dtype) of each tensor. `spec` is their structure; None for one
    tensor.
    """

    def __init__(self, forms: list[tuple[Any, ...]], spec: Any) -> None:
        self.forms, self._spec = forms, spec
        self._only = forms[0] if len(forms) == 1 else None

    def result(self, flat: Sequence[Tensor]) -> Any:
        """Return flat outputs in the structure of the original's output."""
        if self._spec is None:
            return flat[0]
        return pytree.tree_unflatten(list(flat), self._spec)

    def normalised(
        self,
        out: Any,
        inputs: Sequence[Tensor],
        state: Sequence[Tensor],
        places: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """Return the kernel's outputs as a flat list, with the original's strides.

        An output that shares memory with an input or parameter is copied. `places` are the
        addresses of both, if they are known.
        """
        if self._only is not None and out.__class__ is Tensor:
            shape, stride, dtype = self._only
            if out.shape == shape and out.dtype is dtype and out.stride() == stride:
                # A tensor of the same memory begins inside of it. Addresses take half the time of
                # storages.
                storage = out.untyped_storage()
                low = storage.data_ptr()
                high = low + storage.nbytes()
                for place in pointers((*inputs, *state)) if places is None else places:
                    if low <= place < high:
                        return [out.clone()]
                return [out]
        leaves = [out] if out.__class__ is Tensor else pytree.tree_leaves(out)
        leaves = unaliased(leaves, [*inputs, *state])
        if len(leaves) != len(self.forms):
            raise RuntimeError(
                f"the kernel returned {len(leaves)} tensors; the original returns {len(self.forms)}"
            )
        return [_laid_out(*pair) for pair in zip(leaves, self.forms, strict=True)]


def unaliased(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs; copy each that shares memory with `others` or an earlier output."""
    seen = {tensor.untyped_storage()._cdata for tensor in others}
    result = []
    for tensor in outputs:
        storage = tensor.untyped_storage()._cdata
        result.append(tensor.clone() if storage in seen else tensor)
        seen.add(storage)
    return result


def _laid_out(tensor: Tensor, form: tuple[Any, ...]) -> Tensor:
    shape, stride, dtype = form
    if tensor.shape != shape or tensor.dtype is not dtype:
        raise RuntimeError(
            f"the kernel returned {tensor.dtype} {list(tensor.shape)}; the original returns "
            f"{dtype} {list(shape)}"
        )
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device).copy_(tensor)
