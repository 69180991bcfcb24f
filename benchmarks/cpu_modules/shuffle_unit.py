"""A unit of ShuffleNet V2 with its channel shuffle."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(58, 58, 1, bias=False),
            nn.BatchNorm2d(58),
            nn.ReLU(inplace=True),
            nn.Conv2d(58, 58, 3, padding=1, groups=58, bias=False),
            nn.BatchNorm2d(58),
            nn.Conv2d(58, 58, 1, bias=False),
            nn.BatchNorm2d(58),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, dim=1)
        y = torch.cat((kept, self.branch(changed)), dim=1)
        b, c, h, w = y.shape
        return y.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 116, 28, 28)]


def get_init_inputs() -> list[object]:
    return []
