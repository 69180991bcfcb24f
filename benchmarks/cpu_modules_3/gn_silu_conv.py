"""Group norm, SiLU and a 1x1 convolution with a residual, in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(16, 64)
        self.conv = nn.Conv2d(64, 64, 1)
        self.to(torch.bfloat16)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = F.silu(self.norm(x) + time[:, :, None, None])
        return (x + self.conv(y)) * 0.7071


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 64, 24, 24).bfloat16(), torch.randn(2, 64).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
