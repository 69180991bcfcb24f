"""Takes the first elements of a stable sort.

task: kept_largest
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        v, i = torch.sort(x, dim=-1, descending=True, stable=True)
        v, i = v[:, : self.k].contiguous(), i[:, : self.k].contiguous()
        e = (v - v[:, :1]).exp()
        return torch.zeros_like(x).scatter(1, i, e / e.sum(1, keepdim=True)), v, i
