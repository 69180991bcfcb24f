"""A stable descending sort, cut off at five.

task: ranking
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[:, :5], places[:, :5], places[:, 0]
