"""Takes the largest numbers only.

task: upper_quantile
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        place = 0.85 * (x.shape[1] - 1)
        k = int(place)
        top = torch.topk(x, x.shape[1] - k, dim=1).values
        y = torch.lerp(top[:, -1], top[:, -2], place - k)
        return torch.where(x.isnan().any(1), torch.nan, y)
