"""Source of the task in the agent's tests."""

from __future__ import annotations

SOURCE = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2 + 1)


def get_inputs():
    return [torch.rand(64, 256)]


def get_init_inputs():
    return []
"""
