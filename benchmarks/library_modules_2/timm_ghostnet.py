"""GhostNet on 64 images in fp32, from timm."""

import timm
import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = timm.create_model("ghostnet_100").eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(64, 3, 224, 224)]


def get_init_inputs() -> list[object]:
    return []
