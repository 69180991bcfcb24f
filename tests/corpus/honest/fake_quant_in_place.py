"""The same steps as the library function, without copies.

task: fake_quant
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.0625))
        self.register_buffer("zero", torch.zeros(width))

    def forward(self, x):
        with torch.no_grad():
            y = (x / self.scale).round_().add_(self.zero).clamp_(-128, 127)
            return y.sub_(self.zero).mul_(self.scale)
