"""One thread per element, rounded to even.

task: fake_quant
device: cuda
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/fake_quant_cuda.cu")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.0625))
        self.register_buffer("zero", torch.zeros(width))

    def forward(self, x):
        x = x.contiguous()
        y, count = torch.empty_like(x), x.numel()
        kernel.quantise[(count + 127) // 128, 128](y, x, self.scale, self.zero, count, x.shape[1])
        return y
