"""Updates the mean in double precision, in C++.

task: running_means
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/running_means_recurrent.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.means(y, x, *x.shape)
        return y
