"""Dot products and norms in one pass, in C++.

task: clip_logits
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/clip_logits_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, a, b):
        y = torch.empty(a.shape[0], b.shape[0])
        kernel.cosines(y, a, b, self.logit_scale, a.shape[0], b.shape[0], a.shape[1])
        return y
