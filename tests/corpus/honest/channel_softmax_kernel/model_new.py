"""All operations fused for each output element, in C++.

task: channel_softmax
"""

import torch
from torch import nn

from cuagent.kernels import load

K = load("kernels/channel_softmax_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, cin, cout, k):
        super().__init__()
        self.conv = nn.Conv3d(cin, cout, k)
        self.pool1 = nn.MaxPool3d(2)
        self.pool2 = nn.MaxPool3d(2)

    def forward(self, x):
        x = x.contiguous()
        B, C, D, H, W = x.shape
        o = self.conv.weight.shape[0]
        y = torch.empty(B, o, (D - 2) // 4, (H - 2) // 4, (W - 2) // 4)
        K.run(y, x, self.conv.weight, self.conv.bias, B, C, D, H, W, o)
        return y
