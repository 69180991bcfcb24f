"""Keeps a running maximum and a scaled sum.

task: log_prefix
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        top, total, out = x[:, 0], torch.ones(x.shape[0]), [x[:, 0]]
        for column in x.unbind(-1)[1:]:
            new = torch.maximum(top, column)
            total = total * (top - new).nan_to_num(0.0).exp() + (column - new).nan_to_num(0.0).exp()
            top = new
            out.append(top + total.log())
        return torch.stack(out, -1)
