"""A block of ConvNeXt V2 tiny in its third stage, in float32, with global response norm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, CHANNELS, SIDE = 64, 384, 14


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, 7, padding=3, groups=CHANNELS)
        self.norm = nn.LayerNorm(CHANNELS, eps=1e-6)
        self.expand = nn.Linear(CHANNELS, 4 * CHANNELS)
        self.gamma = nn.Parameter(torch.randn(1, 1, 1, 4 * CHANNELS) * 0.1)
        self.beta = nn.Parameter(torch.randn(1, 1, 1, 4 * CHANNELS) * 0.1)
        self.reduce = nn.Linear(4 * CHANNELS, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = F.gelu(self.expand(y))
        size = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        share = size / (size.mean(dim=-1, keepdim=True) + 1e-6)
        y = self.gamma * (y * share) + self.beta + y
        return x + self.reduce(y).permute(0, 3, 1, 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return []
