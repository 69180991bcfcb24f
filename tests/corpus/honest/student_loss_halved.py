"""Squares half of the difference.

task: student_loss
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        d = (x - y) * 0.5
        return torch.log1p(d.square()).mean(-1) * 2.5
