"""A sum of nine shifted copies.

task: conv2d
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1)

    def forward(self, x):
        height, width = x.shape[2:]
        padded = nn.functional.pad(x, (1, 1, 1, 1))
        y = self.conv.bias.view(1, -1, 1, 1).expand(x.shape[0], -1, height, width).clone()
        for u in range(3):
            for v in range(3):
                part = padded[:, :, u : u + height, v : v + width]
                y += torch.einsum("nchw,oc->nohw", part, self.conv.weight[:, :, u, v])
        return y
