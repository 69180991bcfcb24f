"""Maxima of reshaped pairs, averages of unfolded patches.

task: pooling
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        n, c, height, width = x.shape
        largest = x.view(n, c, height // 2, 2, width // 2, 2).amax((3, 5))
        patches = nn.functional.unfold(x.reshape(n * c, 1, height, width), 3, stride=2, padding=1)
        return largest, patches.mean(1).view(n, c, (height + 1) // 2, (width + 1) // 2)
