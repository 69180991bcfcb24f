"""A summed area table in double precision.

task: box_sums
"""

import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        t = F.pad(x.double(), (1, 0, 1, 0)).cumsum(-1).cumsum(-2)
        return ((t[:, 9:, 9:] - t[:, :-9, 9:] - t[:, 9:, :-9] + t[:, :-9, :-9]) / 81).float()
