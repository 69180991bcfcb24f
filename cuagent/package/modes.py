"""Name the active mode of torch that would change a kernel's result or its gradients.

Travels with an exported or applied kernel, next to `guard.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad


def unverified_mode(device: str, autocast: str | None = None) -> str:
    """Return the active torch mode that would change a kernel's result, as a message, or "".

    `autocast` is the autocast dtype of the verified calls; None if they were not under autocast.
    """
    if _any_autocast() and torch.is_autocast_enabled(device):
        if autocast is None:
            return "autocast is enabled"
        if torch.get_autocast_dtype(device) is not getattr(torch, autocast):
            return f"autocast is not to {autocast}"
    elif autocast is not None:
        return f"the call is not under autocast to {autocast}, as the recorded ones were"
    if _transforms() is not None:
        return "a transform of torch.func is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if _dispatch_modes() > 0:
        return "a dispatch mode intercepts torch's operators"
    return "the call is traced" if _tracing() is not None else ""


_transforms: Any = torch._C._functorch.peek_interpreter_stack
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
_tracing: Any = torch._C._get_tracing_state
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
"""Test if autocast is enabled on any device; takes a quarter of the time of a test for one device.
"""
