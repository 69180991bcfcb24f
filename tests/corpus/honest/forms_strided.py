"""The same shapes with other strides, and the dictionary in another order.

task: forms
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, s):
        apart = torch.zeros(24, 9)
        apart[::2] = x
        named = {"above": 12 - (x <= s).sum(0), "every second": (x + s)[::2]}
        return [x[:, 9:], s * x.sum(0).sum(), (apart[::2].T, named)]
