"""Two depthwise separable blocks with batch norm and hard swish at batch 1."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(inside), nn.BatchNorm2d(outside)
        self.pointwise = nn.Conv2d(inside, outside, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.norm1(self.depthwise(x)))
        return F.hardswish(self.norm2(self.pointwise(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 32, 56, 56)]


def get_init_inputs() -> list[object]:
    return []
