"""Softmax over scores with a learned bias and scale per column, as in gating and attention."""

import torch
from torch import nn

ROWS, COLUMNS = 2048, 1024


class Model(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns) + 0.5)
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * self.scale + self.bias, dim=-1) * 2.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[int]:
    return [COLUMNS]
