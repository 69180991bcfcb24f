"""The second layer of ResNet-50 on 32 images in fp32, from torchvision."""

import torch
import torchvision
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = torchvision.models.resnet50(weights=None).layer2.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 256, 56, 56)]


def get_init_inputs() -> list[object]:
    return []
