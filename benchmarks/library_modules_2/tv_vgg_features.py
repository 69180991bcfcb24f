"""The last eight convolutions of VGG-16 on 16 images in bf16, from torchvision."""

import torch
import torchvision
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = torchvision.models.vgg16_bn(weights=None)
        self.layer = network.features[20:].to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 256, 56, 56, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
