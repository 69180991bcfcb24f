"""A product with a matrix of zeros and ones.

task: segments
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, values, index):
        return torch.nn.functional.one_hot(index, 8).to(values.dtype).t() @ values
