"""The inner axis in 64 blocks, which are added pairwise.

task: wide
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        blocks = x.shape[1] // 64
        parts = x.view(-1, 64, blocks).transpose(0, 1) @ self.linear.weight.view(
            -1, 64, blocks
        ).permute(1, 2, 0)
        while len(parts) > 1:
            parts = parts[::2] + parts[1::2]
        return parts[0] + self.linear.bias
