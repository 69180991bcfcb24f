"""An inverted residual of EfficientNet with squeeze and excitation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.bn1 = nn.Conv2d(40, 240, 1, bias=False), nn.BatchNorm2d(240)
        self.deep = nn.Conv2d(240, 240, 5, padding=2, groups=240, bias=False)
        self.bn2 = nn.BatchNorm2d(240)
        self.reduce, self.excite = nn.Conv2d(240, 10, 1), nn.Conv2d(10, 240, 1)
        self.project, self.bn3 = nn.Conv2d(240, 40, 1, bias=False), nn.BatchNorm2d(40)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.bn1(self.expand(x)))
        y = F.silu(self.bn2(self.deep(y)))
        gate = self.excite(F.silu(self.reduce(y.mean((2, 3), keepdim=True))))
        return self.bn3(self.project(y * gate.sigmoid())) + x


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 40, 28, 28)]


def get_init_inputs() -> list[object]:
    return []
