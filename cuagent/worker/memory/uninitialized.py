"""Poison and guard the uninitialised tensors that a candidate allocates with torch.

`torch.empty` usually returns zeros or the last result, so a kernel that skips elements, or writes
one too many, often looks right. Within an `Allocations` context such tensors are filled with a
poison byte and placed between guard bands. This covers the Python calls (`torch.empty`,
`empty_like`, `empty_strided`, `Tensor.new_empty`), not allocations inside C++, and a candidate can
switch it off. It finds bugs; the referee does not rely on its result.

Allocations during the capture of a CUDA graph stay as they are. A capture records the fills instead
of executing them, so the guard bands would contain arbitrary bytes until the first replay, and each
later replay, also in timed calls, would fill them again. The launches before the capture, in which
libraries allocate their workspaces, run on guarded tensors.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

from cuagent.worker.memory.arena import ALIGNMENT, GUARD


class Allocations:
    """Context manager that poisons and guards new uninitialised tensors.

    `poison` is the fill byte; with None, as in every timed call, the context does nothing.
    """

    def __init__(self, poison: int | None):
        self._poison = poison
        self._guards: list[Tensor] = []
        self._mode: Any = None

    def __enter__(self) -> None:
        if self._poison is not None:
            self._mode = _mode_class()(self._poison, self._guards)
            self._mode.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            self._mode.__exit__(*error)

    def overrun(self) -> bool:
        """Return True if a guard band was overwritten."""
        # numpy compares: the rule kernels-only refuses torch's operators in this process
        return not all(bool((guard.cpu().numpy() == GUARD).all()) for guard in self._guards)


@cache
def _mode_class() -> Any:
    """Return the TorchFunctionMode that intercepts the allocations.

    It is defined once, because torch.compile compiles again for another class.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    watched = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)

    class Guarded(TorchFunctionMode):
        def __init__(self, poison: int, guards: list[Tensor]) -> None:
            super().__init__()
            self._poison, self._guards = poison, guards

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            if torch.compiler.is_compiling():  # torch.compile allocates the tensor itself
                return result
            if function in watched and _plain(result) and not _is_captured(result):
                return _guarded(result, self._poison, self._guards)
            return result

    return Guarded


def _plain(tensor: Tensor) -> bool:
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not tensor.requires_grad
        and not tensor.is_pinned()
        and tensor.device.type in ("cpu", "cuda")
    )


def _is_captured(tensor: Tensor) -> bool:
    """Return True if a CUDA graph is being captured that contains this allocation."""
    import torch

    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _guarded(tensor: Tensor, poison: int, guards: list[Tensor]) -> Tensor:
    """Return a poisoned tensor of the same form, placed between guard bands in a larger
    allocation."""
    import torch

    size = tensor.untyped_storage().nbytes()
    memory = torch.full(
        (ALIGNMENT + size + ALIGNMENT,), GUARD, dtype=torch.uint8, device=tensor.device
    )
    guards += [memory[:ALIGNMENT], memory[ALIGNMENT + size :]]
    inner = memory[ALIGNMENT : ALIGNMENT + size].fill_(poison)
    return inner.view(tensor.dtype).as_strided(
        tensor.shape, tensor.stride(), inner_offset(inner, tensor)
    )


def inner_offset(inner: Tensor, tensor: Tensor) -> int:
    return inner.storage_offset() // tensor.element_size()
