"""One product of im2col patches.

task: conv2d
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1)

    def forward(self, x):
        columns = nn.functional.unfold(x, 3, padding=1)
        y = self.conv.weight.flatten(1) @ columns + self.conv.bias[:, None]
        return y.view(x.shape[0], -1, *x.shape[2:])
