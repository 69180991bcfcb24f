"""A bottleneck of RegNetY that halves the resolution (timm)."""

import torch
from timm.models.regnet import Bottleneck
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Bottleneck(48, 96, stride=2, group_size=24, se_ratio=0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 48, 28, 28)]


def get_init_inputs() -> list[object]:
    return []
