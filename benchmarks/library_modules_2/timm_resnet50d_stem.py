"""The stem and first stage of ResNet-50-D on 32 images in fp16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        network = timm.create_model("resnet50d")
        self.layer = (
            nn.Sequential(network.conv1, network.bn1, network.act1, network.maxpool, network.layer1)
            .to(torch.float16)
            .eval()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(32, 3, 224, 224, dtype=torch.float16)]


def get_init_inputs() -> list[object]:
    return []
