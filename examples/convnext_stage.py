"""A stage of ConvNeXt-T: blocks of a depthwise 7x7 convolution, LayerNorm, a GELU MLP and a scale.

The sizes are those of its first stage for 32 images, for a GPU. On a CPU give smaller ones:

    cuagent optimize examples/convnext_stage.py --init "32, 2" --inputs "f32[2,32,28,28]"
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, SIZE, BLOCKS = 32, 96, 56, 3


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand = nn.Linear(channels, 4 * channels)
        self.contract = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.scale * self.contract(F.gelu(self.expand(h)))
        return x + h.permute(0, 3, 1, 2)


class Model(nn.Module):
    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[int]:
    return [CHANNELS, BLOCKS]
