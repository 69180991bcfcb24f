"""One block per row; it processes tiles of 512 with a carry.

task: exclusive_scan
device: cuda
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/exclusive_scan_cuda.cu")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel.scan[x.shape[0], 512](y, x, x.shape[1])
        return y
