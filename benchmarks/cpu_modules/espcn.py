"""ESPCN, which enlarges an image by a pixel shuffle."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 9, 3, padding=1)
        self.shuffle = nn.PixelShuffle(3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv1(x))
        x = torch.tanh(self.conv2(x))
        return torch.clamp(self.shuffle(self.conv3(x)), 0.0, 1.0)


def get_inputs() -> list[Tensor]:
    return [torch.rand(1, 1, 64, 64)]


def get_init_inputs() -> list[object]:
    return []
