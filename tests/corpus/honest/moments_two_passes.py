"""The mean first, then centred squares; returns a list instead of a tuple.

task: moments
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        mean = x.sum(-1) / x.shape[-1]
        return [mean, (x - mean[:, None]).square().mean(-1), torch.max(x, dim=-1).values]
