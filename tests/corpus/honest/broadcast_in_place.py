"""Operations in place on a buffer, returned as a non-contiguous view.

task: broadcast
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, scale, shift):
        return torch.mul(x, scale).add_(shift).tanh_().transpose(0, 2)
