"""The head of an FCN on 8 feature maps in fp32, from torchvision."""

import torch
import torchvision
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torchvision.models.segmentation.fcn.FCNHead(512, 21).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(8, 512, 64, 64)]


def get_init_inputs() -> list[object]:
    return []
