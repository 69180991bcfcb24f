"""The convolution module of a Conformer, in bf16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(144)
        self.into, self.out = nn.Conv1d(144, 288, 1), nn.Conv1d(144, 144, 1)
        self.deep = nn.Conv1d(144, 144, 31, padding=15, groups=144)
        self.bn = nn.BatchNorm1d(144)
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).transpose(1, 2)
        y = F.glu(self.into(y), dim=1)
        y = F.silu(self.bn(self.deep(y)))
        return x + self.out(y).transpose(1, 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 100, 144).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
