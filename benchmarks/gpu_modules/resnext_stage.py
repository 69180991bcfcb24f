"""The second stage of ResNeXt-50 32x4d for 32 images in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, SIDE, INPUTS, INNER, OUTPUTS, GROUPS, BLOCKS = 32, 56, 256, 256, 512, 32, 4


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, INNER, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(INNER)
        self.conv2 = nn.Conv2d(INNER, INNER, 3, stride, 1, groups=GROUPS, bias=False)
        self.bn2 = nn.BatchNorm2d(INNER)
        self.conv3 = nn.Conv2d(INNER, OUTPUTS, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(OUTPUTS)
        self.downsample = (
            nn.Sequential(
                nn.Conv2d(inputs, OUTPUTS, 1, stride, bias=False), nn.BatchNorm2d(OUTPUTS)
            )
            if stride != 1 or inputs != OUTPUTS
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        identity = x if self.downsample is None else self.downsample(x)
        return F.relu(y + identity)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        later = [Bottleneck(OUTPUTS, 1) for _ in range(BLOCKS - 1)]
        self.blocks = nn.Sequential(Bottleneck(INPUTS, 2), *later)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.2, 0.2)
                nn.init.uniform_(module.running_var, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def get_inputs() -> list[Tensor]:
    return [torch.rand(BATCH, INPUTS, SIDE, SIDE)]


def get_init_inputs() -> list[object]:
    return []
