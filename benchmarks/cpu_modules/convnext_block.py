"""A block of timm's ConvNeXt."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(96, 96, 7, padding=3, groups=96)
        self.norm = nn.LayerNorm(96, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(96, 384), nn.Linear(384, 96)
        self.gamma = nn.Parameter(torch.full((96,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).permute(0, 2, 3, 1)
        y = self.fc2(F.gelu(self.fc1(self.norm(y))))
        return x + (y * self.gamma).permute(0, 3, 1, 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 96, 28, 28)]


def get_init_inputs() -> list[object]:
    return []
