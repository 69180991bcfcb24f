"""Two threads compute half of the rows each; the call waits for both.

task: linear
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        y = torch.empty(x.shape[0], self.linear.out_features)
        half = x.shape[0] // 2

        def part(rows):
            with torch.no_grad():
                y[rows] = torch.relu(self.linear(x[rows]))

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(part, [slice(0, half), slice(half, None)]))
        return y
