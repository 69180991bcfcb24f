"""Pairwise sums, centred before squaring.

task: moments
"""

import torch
from torch import nn


def halved(x):
    while x.shape[-1] > 1:
        even = x.shape[-1] // 2 * 2
        x = torch.cat([x[..., 0:even:2] + x[..., 1:even:2], x[..., even:]], -1)
    return x[..., 0]


class ModelNew(nn.Module):
    def forward(self, x):
        mean = halved(x) / x.shape[-1]
        variance = halved((x - mean[:, None]).square()) / x.shape[-1]
        return mean, variance, x.max(-1)[0]
