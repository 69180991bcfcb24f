"""Powers of two, with log2(e) multiplied into the inputs.

task: softmax
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        scaled = (x - x.amax(-1, keepdim=True)) * 1.4426950408889634
        e = torch.exp2(scaled)
        return e * e.sum(-1, keepdim=True).reciprocal()
