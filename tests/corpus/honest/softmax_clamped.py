"""Exponents clamped at -87, as in a fast exp without subnormal results.

task: softmax
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = (x - x.amax(-1, keepdim=True)).clamp(min=-87).exp()
        return e / e.sum(-1, keepdim=True)
