"""The mean focal loss of logits."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, x, target):
        loss = nn.functional.binary_cross_entropy_with_logits(x, target, reduction="none")
        p = torch.sigmoid(x)
        missed = p * (1 - target) + (1 - p) * target
        weight = self.alpha * target + (1 - self.alpha) * (1 - target)
        return (weight * missed**self.gamma * loss).mean()


def get_inputs():
    return [torch.randn(24, 32), (torch.rand(24, 32) > 0.7).float()]


def get_init_inputs():
    return [0.25, 2.0]
