"""Operations in place on a buffer of its own, handed out as a view that is not contiguous.

task: broadcast
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, scale, shift):
        return torch.mul(x, scale).add_(shift).tanh_().transpose(0, 2)
