"""Create attempts that compute column sums in C++. The task is in `regimes`; a test provides the
function's body."""

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
    """Return an attempt whose C++ function `columns` has the given body. `head`: source up to the
    function's first line; `more`: source after the function."""
    source = head + body + "}\n" + more
    return Attempt((("kernels/columns.cpp", source), ("model_new.py", model)))
