"""Replaces missing numbers by nan_to_num.

task: largest_known
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1)
