"""Uses the logarithm of a sigmoid.

task: weighted_bce
"""

import torch
from torch import nn
from torch.nn import functional


class ModelNew(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.register_buffer("pos_weight", torch.ones(classes))

    def forward(self, x, target):
        yes, no = functional.logsigmoid(x), functional.logsigmoid(-x)
        return -(self.pos_weight * target * yes + (1 - target) * no).mean()
