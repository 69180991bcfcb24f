"""exp(-softplus(r)) is sigmoid(-r).

task: softplus_rate
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(24))

    def forward(self, x):
        return x * torch.sigmoid(-self.rate)
