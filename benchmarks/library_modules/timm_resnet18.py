"""ResNet-18 on 64 images in bf16, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = timm.create_model("resnet18").to(torch.bfloat16).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 3, 224, 224, dtype=torch.bfloat16)]


def get_init_inputs() -> list[object]:
    return []
