"""Selects the channels by index_select.

task: channel_order
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.arange(24).view(4, 6).t().reshape(-1))
        self.gain = nn.Parameter(torch.ones(24))

    def forward(self, x):
        return x.index_select(1, self.order).mul_(self.gain[:, None])
