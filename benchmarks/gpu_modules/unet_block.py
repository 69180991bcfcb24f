"""A residual block of a diffusion UNet with a time embedding, 320 to 640 channels, in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, INPUTS, OUTPUTS, EMBEDDED, SIDE = 16, 320, 640, 1280, 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, INPUTS, eps=1e-5)
        self.conv1 = nn.Conv2d(INPUTS, OUTPUTS, 3, padding=1)
        self.time = nn.Linear(EMBEDDED, OUTPUTS)
        self.norm2 = nn.GroupNorm(32, OUTPUTS, eps=1e-5)
        self.dropout = nn.Dropout(0.0)
        self.conv2 = nn.Conv2d(OUTPUTS, OUTPUTS, 3, padding=1)
        self.shortcut = nn.Conv2d(INPUTS, OUTPUTS, 1)
        self.to(torch.bfloat16)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        y = self.conv2(self.dropout(F.silu(self.norm2(y))))
        return self.shortcut(x) + y


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, INPUTS, SIDE, SIDE).bfloat16(),
        torch.randn(BATCH, EMBEDDED).bfloat16(),
    ]


def get_init_inputs() -> list[object]:
    return []
