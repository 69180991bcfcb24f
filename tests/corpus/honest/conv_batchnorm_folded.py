"""The norm is folded into weight and bias at each call.

task: conv_batchnorm
"""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x):
        norm = self.norm
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = self.conv.weight * scale[:, None, None, None]
        bias = norm.bias - norm.running_mean * scale
        return F.conv2d(x, weight, bias, padding=1)
