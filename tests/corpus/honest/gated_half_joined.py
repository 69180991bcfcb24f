"""One product with both weights.

task: gated_half
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(96, 128, bias=False, dtype=torch.half)
        self.up = nn.Linear(96, 128, bias=False, dtype=torch.half)

    def forward(self, x):
        both = x.float() @ torch.cat([self.gate.weight, self.up.weight]).float().T
        gate, up = both.chunk(2, 1)
        return (torch.sigmoid(gate) * gate * up).half()
