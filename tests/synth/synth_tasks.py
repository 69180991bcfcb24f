"""Create source texts of small tasks, and orders to examine them."""

from __future__ import annotations

import math

from task_text import task_text

from cuagent.synth.order import Order


def task(
    forward: str,
    *,
    init: str = "pass",
    arguments: str = "x",
    inputs: str = "torch.randn(BATCH, 64)",
    before: str = "",
) -> str:
    """Return the source text of a task with a batch size of 8."""
    before = f"\nBATCH = 8\n{before}"
    return task_text(forward, inputs, init=init, arguments=arguments, before=before)


def order(code: str, *labels: str, dtype: str = "float32", solve: bool = False) -> Order:
    """Return an order to examine a task without torch.compile. `solve`: with the time window of a
    CPU and a search of the batch size."""
    window = (1e-4, 2e-2) if solve else (0.0, math.inf)
    return Order(code, labels, dtype, "cpu", window, 1e-3, 64 << 20, compile=False, solve=solve)
