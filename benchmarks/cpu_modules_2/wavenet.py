"""A residual block of WaveNet with dilated causal convolutions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dilation = 4
        self.conv = nn.Conv1d(32, 64, 2, dilation=4)
        self.residual, self.skip = nn.Conv1d(32, 32, 1), nn.Conv1d(32, 32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(F.pad(x, (self.dilation, 0)))
        a, b = y.chunk(2, dim=1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.residual(y), self.skip(y)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 32, 600)]


def get_init_inputs() -> list[object]:
    return []
