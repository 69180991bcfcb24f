"""Mix, round and limit in one pass, in C++.

task: blended_bytes
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/blended_bytes_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, a, b, share):
        y = torch.empty_like(a)
        kernel.blend(y, a, b, share, a.shape[0], share.numel())
        return y
