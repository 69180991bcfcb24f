"""One warp per row.

task: gaussian_head
device: cuda
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/gaussian_head_cuda.cu")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(width))
        self.log_var = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        x = x.contiguous()
        y = x.new_empty(x.shape[0])
        kernel.density[x.shape[0], 32](y, x, self.mean, self.log_var, x.shape[1])
        return y
