"""Bilinear pooling of two feature maps with signed square roots and a classifier."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(64, 24, 1)
        self.out = nn.Linear(24 * 64, 20)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.reduce(x)).flatten(2)
        b = F.relu(x).flatten(2)
        pooled = (a @ b.transpose(1, 2) / a.shape[2]).flatten(1)
        pooled = pooled.sign() * torch.sqrt(pooled.abs() + 1e-10)
        return self.out(F.normalize(pooled, dim=1))


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 64, 14, 14)]


def get_init_inputs() -> list[object]:
    return []
