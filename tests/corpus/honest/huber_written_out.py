"""Written out by cases, with one division.

task: huber
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, target, keep):
        error = (x - target).abs()
        loss = torch.where(error < 0.5, 0.5 * error * error, 0.5 * (error - 0.25))
        return torch.where(keep, loss, 0.0).sum() / keep.sum().clamp(min=1)
