"""An upsampling block of a diffusion UNet with a skip connection and a time embedding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, 64), nn.GroupNorm(8, 32)
        self.conv1 = nn.Conv2d(64, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=1)
        self.time, self.short = nn.Linear(128, 32), nn.Conv2d(64, 32, 1)

    def forward(self, x: Tensor, skip: Tensor, t: Tensor) -> Tensor:
        x = torch.cat((F.interpolate(x, scale_factor=2.0, mode="nearest"), skip), dim=1)
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(t))[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return y + self.short(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 32, 16, 16), torch.randn(1, 32, 32, 32), torch.randn(1, 128)]


def get_init_inputs() -> list[object]:
    return []
