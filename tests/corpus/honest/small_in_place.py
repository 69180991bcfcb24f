"""Operations in place on a copy.

task: small
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clone().tanh_().mul_(1e-4)
