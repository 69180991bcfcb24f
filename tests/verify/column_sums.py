"""Attempts that compute column sums in C++: `regimes` has the task, a test the body."""

from __future__ import annotations

from cuagent.attempt import Attempt

MODEL = """
import torch
from cuagent.kernels import load

kernel = load("kernels/columns.cpp")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[1])
        kernel.columns(out, x, x.shape[0], x.shape[1])
        return out
"""


def attempt_of(head: str, body: str, more: str = "", model: str = MODEL) -> Attempt:
    """Return an attempt whose `columns` has this body; `head` ends with the function's first line.

    `more` stands behind the function.
    """
    source = head + body + "}\n" + more
    return Attempt((("kernels/columns.cpp", source), ("model_new.py", model)))
