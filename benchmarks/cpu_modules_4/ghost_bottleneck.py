"""A bottleneck of GhostNet with squeeze-and-excitation (timm)."""

import torch
from timm.models.ghostnet import GhostBottleneck
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = GhostBottleneck(24, 72, 40, dw_kernel_size=5, stride=2, se_ratio=0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 24, 28, 28)]


def get_init_inputs() -> list[object]:
    return []
