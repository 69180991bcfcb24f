"""Sorted in reverse, so that the last of equal elements comes first; non-contiguous views.

task: ranking
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        order = x.shape[-1] - 1 - torch.sort(x.flip(-1), dim=-1, descending=True, stable=True)[1]
        places = order.t()[:5].t()
        return x.gather(-1, places), places, torch.argmax(x, dim=-1)
