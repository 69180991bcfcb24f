"""Chunks of seven, merged by logaddexp.

task: logsumexp
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        parts = [torch.logsumexp(part, 1) for part in x.split(7, dim=1)]
        total = parts[0]
        for part in parts[1:]:
            total = torch.logaddexp(total, part)
        return total
