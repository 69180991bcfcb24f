"""Uses logsigmoid of both signs.

task: soft_labels
"""

import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        return -(y * F.logsigmoid(x) + (1 - y) * F.logsigmoid(-x)).mean()
