"""A normalised image and a depthwise block, scaled by a gain that is initialised with 1e-6."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False)
        self.bn = nn.BatchNorm2d(c)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406, 0.5]).view(1, c, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225, 0.25]).view(1, c, 1, 1))
        self.gamma = nn.Parameter(1e-6 * torch.ones(c, 1, 1))

    def forward(self, x):
        x = (x - self.mean) / self.std
        return x + self.gamma * torch.nn.functional.silu(self.bn(self.conv(x)))


def get_inputs():
    return [torch.rand(3, 4, 17, 19)]


def get_init_inputs():
    return [4]
