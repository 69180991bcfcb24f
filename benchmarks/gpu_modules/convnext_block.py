"""A block of ConvNeXt base in its first stage, in bf16."""

import torch
from torch import Tensor, nn

BATCH, CHANNELS, SIDE = 64, 128, 56


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, 7, padding=3, groups=CHANNELS)
        self.norm = nn.LayerNorm(CHANNELS, eps=1e-6)
        self.expand = nn.Linear(CHANNELS, 4 * CHANNELS)
        self.act = nn.GELU()
        self.reduce = nn.Linear(4 * CHANNELS, CHANNELS)
        self.gamma = nn.Parameter(torch.full((CHANNELS,), 1e-1))
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.reduce(self.act(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
