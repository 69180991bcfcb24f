"""An inverted bottleneck of EfficientNet B4 with squeeze and excitation, in fp16."""

import torch
from torch import Tensor, nn

BATCH, CHANNELS, INNER, SQUEEZED, SIDE = 64, 56, 336, 14, 48


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(CHANNELS, INNER, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(INNER, eps=1e-3)
        self.depthwise = nn.Conv2d(INNER, INNER, 5, padding=2, groups=INNER, bias=False)
        self.bn2 = nn.BatchNorm2d(INNER, eps=1e-3)
        self.squeeze = nn.Conv2d(INNER, SQUEEZED, 1)
        self.excite = nn.Conv2d(SQUEEZED, INNER, 1)
        self.project = nn.Conv2d(INNER, CHANNELS, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(CHANNELS, eps=1e-3)
        self.act = nn.SiLU(inplace=True)
        for norm in (self.bn1, self.bn2, self.bn3):
            nn.init.uniform_(norm.running_mean, -0.2, 0.2)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
        self.half()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.expand(x)))
        y = self.act(self.bn2(self.depthwise(y)))
        scale = self.excite(self.act(self.squeeze(y.mean((2, 3), keepdim=True))))
        y = self.bn3(self.project(y * scale.sigmoid()))
        return x + y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE).half()]


def get_init_inputs() -> list[object]:
    return []
