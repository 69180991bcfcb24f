"""Compute gradients with the verified backward of a kernel.

Travels with an exported or applied kernel, next to `boundary.py`. A kernel of a training step has a
function `backward(*arguments, *cotangents)`. It returns the gradients of the inputs and parameters
that `verified.json` lists, in that order; all other tensors have none.

Not covered: second derivatives, and cotangents (gradients of the outputs) with another dtype or
shape; the original computes these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .forms import ALIGNMENT, Form

_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)
"""Function that returns True for a batched gradient (`torch.autograd.grad(is_grads_batched=True)`).
"""


class OwnBackward:
    """The verified backward of one kernel."""

    def __init__(self, facts: dict[str, Any], names: dict[str, int], inputs: int) -> None:
        """`facts` is the entry `backward` of `verified.json`, `names` gives the index of each
        parameter in the module's state, `inputs` is the number of input tensors."""
        self.places = [*facts["inputs"], *(inputs + names[n] for n in facts["parameters"])]
        """Index in [*inputs, *state] of the tensor that each gradient of the kernel belongs to."""
        state = {inputs + names[n] for n in (*facts["parameters"], *facts["unused"])}
        self._known = state.union(range(inputs))
        """Indices of the tensors whose gradient was verified, or that were verified to have none.
        """
        self.outputs: list[int] = facts["outputs"]
        self._forms = [Form(**form) for form in facts["tensors"]]

    def covers(self, needed: Sequence[bool]) -> bool:
        """Return True if the gradients of all needed tensors were verified.

        `needed` has one entry for each input and state tensor. The gradient of a parameter that was
        frozen during the verification was not verified.
        """
        return all(k in self._known for k, need in enumerate(needed) if need)

    def cotangents(self, gradients: Sequence[Tensor | None]) -> list[Tensor] | None:
        """Return the outputs' gradients as the kernel takes them: contiguous and aligned.

        None if one is missing, batched, or has another dtype or shape than the verified one.
        """
        found: list[Tensor] = []
        for k, form in zip(self.outputs, self._forms, strict=True):
            given = gradients[k]
            if given is None or given.dtype is not form.dtype or given.shape != form.shape:
                return None
            if _batched(given):
                return None
            if given.is_neg() or given.is_conj() or not given.is_contiguous():
                given = given.clone(memory_format=torch.contiguous_format)
            elif given.data_ptr() % ALIGNMENT:
                given = given.clone()
            found.append(given)
        return found

    def gradients(
        self,
        backward: Callable[..., Any],
        args: Sequence[Any],
        saved: Sequence[Tensor],
        cotangents: Any,
    ) -> list[Tensor | None] | None:
        """Call the kernel's backward and return a gradient, or None, for each saved tensor.

        A gradient that shares memory with another tensor is copied. Returns None instead of a list
        if `backward` does, because the module has other parameters now.
        """
        found = backward(*args, *cotangents)
        if found is None:
            return None
        found = found if isinstance(found, (list, tuple)) else ()
        if len(found) != len(self.places):
            raise RuntimeError(f"the kernel returned {len(found)} of {len(self.places)} gradients")
        result: list[Tensor | None] = [None] * len(saved)
        seen = {t.untyped_storage()._cdata for t in (*saved, *cotangents)}
        for place, gradient in zip(self.places, found, strict=True):
            wanted = saved[place]
            if gradient.shape != wanted.shape or gradient.dtype is not wanted.dtype:
                raise RuntimeError(
                    f"the kernel returned a gradient of {gradient.dtype} {list(gradient.shape)} "
                    f"for {wanted.dtype} {list(wanted.shape)}"
                )
            storage = gradient.untyped_storage()._cdata
            result[place] = gradient.clone() if storage in seen else gradient
            seen.add(storage)
        return result
