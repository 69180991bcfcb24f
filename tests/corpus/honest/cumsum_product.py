"""A product with a triangular matrix.

task: cumsum
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x @ torch.ones(x.shape[1], x.shape[1]).triu()
