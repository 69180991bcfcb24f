"""Maximum, exponentials in place, division.

task: softmax
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = (x - x.amax(-1, keepdim=True)).exp_()
        return e.div_(e.sum(-1, keepdim=True))
