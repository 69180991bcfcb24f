"""Sources of small tasks, and orders to examine them."""

from __future__ import annotations

import math

from cuagent.synth.examine import Order

TASK = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
{before}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def task(
    forward: str,
    *,
    init: str = "pass",
    arguments: str = "x",
    inputs: str = "torch.randn(BATCH, 64)",
    before: str = "",
) -> str:
    """Return the source of a task."""
    return TASK.format(
        forward=forward, init=init, arguments=arguments, inputs=inputs, before=before
    )


def order(code: str, *labels: str, dtype: str = "float32", solve: bool = False) -> Order:
    """Return an order without torch.compile; with `solve`, for the time window of a CPU."""
    window = (1e-4, 2e-2) if solve else (0.0, math.inf)
    return Order(code, labels, dtype, "cpu", window, 1e-3, 64 << 20, compile=False, solve=solve)
