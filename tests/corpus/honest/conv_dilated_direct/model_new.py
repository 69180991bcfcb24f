"""One sum per output in C++; taps outside the input are skipped.

task: conv_dilated
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/conv_dilated_direct.cpp")


class ModelNew(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, stride=2, padding=2, dilation=2, groups=2)

    def forward(self, x):
        out, rows, columns = self.conv.out_channels, (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2
        y = torch.empty(x.shape[0], out, rows, columns)
        kernel.conv(y, x, self.conv.weight, self.conv.bias, *x.shape, out, rows, columns)
        return y
