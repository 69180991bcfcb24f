"""Exponents clamped at -88.376, the limit of a well-known vectorised exp.

task: softmax
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = (x - x.amax(-1, keepdim=True)).clamp(min=-88.376).exp()
        return e / e.sum(-1, keepdim=True)
