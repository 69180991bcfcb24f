"""Compute gradients by the verified backward of a kernel.

Travels with an exported or applied kernel, next to `boundary.py`. A kernel of a training step has a
function `backward(*arguments, *cotangents)`. It returns the gradients of the inputs and parameters
that `verified.json` lists, in that order; all other tensors have none.

Not covered: second derivatives and cotangents of another form; the original computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .forms import ALIGNMENT, Form

_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)
"""Test for gradients of several backward passes at once (`is_grads_batched`)."""


class OwnBackward:
    """The verified backward of one kernel."""

    def __init__(self, facts: dict[str, Any], names: dict[str, int], inputs: int) -> None:
        """`names` are the places of parameters among the module's `state`, after the `inputs`."""
        self.places = [*facts["inputs"], *(inputs + names[n] for n in facts["parameters"])]
        """Index of each gradient among the inputs and the state."""
        state = {inputs + names[n] for n in (*facts["parameters"], *facts["unused"])}
        self._known = state.union(range(inputs))
        """Places of all tensors whose gradient was verified, or verified to be none."""
        self.outputs: list[int] = facts["outputs"]
        self._forms = [Form(**form) for form in facts["tensors"]]

    def covers(self, needed: Sequence[bool]) -> bool:
        """Return True if the gradients of all needed tensors were verified.

        A parameter that was frozen then has a gradient that no verdict covers.
        """
        return all(k in self._known for k, need in enumerate(needed) if need)

    def cotangents(self, gradients: Sequence[Tensor | None]) -> list[Tensor] | None:
        """Return the cotangents for the kernel; None if the gradients of the outputs do not fit."""
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
        """Return the gradient of each saved tensor, by the kernel; none shares memory.

        None if the kernel's module has other parameters now.
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
