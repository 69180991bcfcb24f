"""Returns its input itself, as the reference does.

task: kept_or_normed
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x, x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)
