"""The normalisation of the image and the BatchNorm are folded into the convolution.

task: layer_scale
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False)
        self.bn = nn.BatchNorm2d(c)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406, 0.5]).view(1, c, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225, 0.25]).view(1, c, 1, 1))
        self.gamma = nn.Parameter(1e-6 * torch.ones(c, 1, 1))

    def forward(self, x):
        s = self.bn.weight * torch.rsqrt(self.bn.running_var + self.bn.eps) / self.std.flatten()
        w = self.conv.weight * s.view(-1, 1, 1, 1)
        b = self.bn.bias - self.bn.running_mean * s * self.std.flatten()
        d = x - self.mean
        z = torch.nn.functional.conv2d(torch.nn.functional.pad(d, (1, 1, 1, 1)), w, b, groups=4)
        return d / self.std + self.gamma * (z / (1 + torch.exp(-z)))
