"""Time the calls of one module in a running script, on a GPU with CUDA events."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass
class Timed:
    """Number of calls and total time of one module."""

    kind: str
    count: int = 0
    seconds: float = 0.0
    """Total seconds of the calls after the script's first step."""
    first_seconds: float = 0.0
    shapes: dict[str, int] = field(default_factory=dict)
    events: list[tuple[Any, Any, bool]] = field(default_factory=list)


def start(entry: Timed | None, module: nn.Module) -> Any:
    """Return a recorded CUDA event as the start of a call, if the module is on a GPU.

    Returns None for a module on the CPU, and False under CUDA graph capture.
    """
    import torch

    if entry is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    if torch.cuda.is_current_stream_capturing():
        return False
    first = next(module.parameters(), None)
    if first is not None and first.device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def stop(entry: Timed | None, clock: Any, begin: float, *, is_first: bool) -> None:
    """Add the time since `begin`, in seconds of `perf_counter`, to the entry; on a GPU the time
    since the event `clock` that `start` returned."""
    if entry is None or clock is False:
        return
    if clock is not None:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        entry.events.append((clock, event, is_first))
        return
    elapsed = time.perf_counter() - begin
    entry.first_seconds += elapsed if is_first else 0.0
    entry.seconds += 0.0 if is_first else elapsed
