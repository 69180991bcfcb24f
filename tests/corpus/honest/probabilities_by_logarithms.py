"""Two logarithms, bounded below by -100.

task: probabilities
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, p, labels):
        yes = p.log().clamp(min=-100)
        no = (1 - p).log().clamp(min=-100)
        return -(labels * yes + (1 - labels) * no).mean()
