"""Logits shifted by their maximum, exponentials, and one sum over all rows.

task: cross_entropy
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        shifted = logits - logits.amax(1, keepdim=True)
        totals = shifted.exp().sum(1).log()
        return (totals.sum() - shifted[torch.arange(len(target)), target].sum()) / len(target)
