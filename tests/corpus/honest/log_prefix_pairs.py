"""Adds one number at a time by logaddexp.

task: log_prefix
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y, out = x[:, 0], [x[:, 0]]
        for column in x.unbind(-1)[1:]:
            y = torch.logaddexp(y, column)
            out.append(y)
        return torch.stack(out, -1)
