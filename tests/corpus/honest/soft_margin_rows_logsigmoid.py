"""Uses the library's logsigmoid.

task: soft_margin_rows
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, label):
        return -torch.nn.functional.logsigmoid(x * label).mean(-1)
