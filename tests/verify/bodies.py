"""Source texts of a small KernelBench task, and of candidates for it that differ only in
`forward`."""

from __future__ import annotations

import textwrap

from cuagent.attempt import Attempt

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))
        self.linear = torch.nn.Linear(width, 96)

    def forward(self, x):
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.rand(64, 512)]


def get_init_inputs():
    return [512]
"""

CANDIDATE = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))
        self.linear = torch.nn.Linear(width, 96)

    def honest(self, x):
        total = (x * x).sum(-1, keepdim=True)
        x = x / torch.sqrt(total / x.shape[-1] + 1e-6) * self.scale
        return (x @ self.linear.weight.t() + self.linear.bias).clamp(min=0)

    def forward(self, x):
{body}
"""


def candidate(body: str) -> Attempt:
    """Return an attempt whose forward has the given body; in it `self.honest(x)` computes the right
    answer."""
    text = CANDIDATE.format(body=textwrap.indent(textwrap.dedent(body).strip(), " " * 8))
    return Attempt((("model_new.py", text),))
